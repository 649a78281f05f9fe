import os

import pytest

from trainmeter.power.knobs import permission as room
from trainmeter.power.knobs.permission import permission


@pytest.fixture
def user(monkeypatch, tmp_path):
    """An ordinary user, for whom sudo says what the test has it say."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(room, "JTOP_SOCKET", str(tmp_path / "jtop.sock"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ZEUSD_SOCK_PATH", raising=False)

    def sudo(script):
        (tmp_path / "sudo").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "sudo").chmod(0o755)

    return sudo


KNOBS = ["nvpmodel", "jetson_clocks", "fan", "RAPL", "amdgpu", "NVML"]


@pytest.mark.parametrize("name", KNOBS)
def test_root_may_turn_every_knob(monkeypatch, name):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert permission(name) == ("as root", None)


@pytest.mark.parametrize("name", KNOBS)
def test_without_sudo_or_a_service_no_knob_may_be_turned_and_what_would_allow_it_is_said(user, name):
    how, remedy = permission(name)
    assert how == ""
    assert ("zeusd" if name == "NVML" else "let sudo run") in remedy
    assert ("group jtop" in remedy) == (name in ("nvpmodel", "jetson_clocks", "fan"))


@pytest.mark.parametrize(("name", "program"), [("nvpmodel", "nvpmodel"), ("RAPL", "tee")])
def test_sudo_is_asked_about_the_program_that_turns_the_knob_and_runs_nothing(user, name, program):
    user(f'[ "$*" = "-n -l {program}" ] && echo /usr/sbin/{program}')
    assert permission(name) == ("by sudo", None)
    user('echo "sudo: a password is required" >&2; exit 1')
    assert permission(name)[0] == ""


def test_zeusd_turns_the_limit_of_an_nvidia_gpu(user, monkeypatch):
    monkeypatch.setenv("ZEUSD_SOCK_PATH", "/run/zeusd/zeusd.sock")
    assert permission("NVML") == ("by zeusd", None)
    assert permission("RAPL")[0] == ""


def test_jtops_service_serves_those_who_may_open_its_socket(user, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "find_spec", lambda name: object())
    assert permission("fan")[0] == ""
    (tmp_path / "jtop.sock").touch()
    assert permission("fan") == ("by jtop's service", None)
    assert permission("amdgpu")[0] == ""
