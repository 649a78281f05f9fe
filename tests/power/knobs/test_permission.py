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
    for name in room.ZEUSD:
        monkeypatch.delenv(name, raising=False)

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


@pytest.mark.parametrize(
    ("name", "asked"),
    [("nvpmodel", "nvpmodel -q"), ("jetson_clocks", "jetson_clocks --show"), ("RAPL", "tee --version")],
)
def test_sudo_is_asked_to_run_the_program_that_turns_the_knob_and_nothing_is_turned(user, name, asked):
    user(f'[ "$*" = "-n {asked}" ] || echo "sudo: a password is required" >&2')
    assert permission(name) == ("by sudo", None)


@pytest.mark.parametrize("name", ["nvpmodel", "RAPL"])
def test_what_sudo_permits_for_a_password_may_not_be_turned(user, name):
    """Its list names the program all the same."""
    user('[ "$2" = -l ] && echo "/usr/bin/$3" && exit; echo "sudo: a password is required" >&2; exit 1')
    assert permission(name)[0] == ""


@pytest.mark.parametrize(
    ("name", "place"), [("ZEUSD_SOCK_PATH", "/run/zeusd/zeusd.sock"), ("ZEUSD_HOST_PORT", "localhost:4938")]
)
def test_zeusd_turns_the_limit_of_an_nvidia_gpu(user, monkeypatch, name, place):
    monkeypatch.setenv(name, place)
    assert permission("NVML") == ("by zeusd", None)
    assert permission("RAPL")[0] == ""


def test_jtops_service_serves_those_who_may_open_its_socket(user, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "find_spec", lambda name: object())
    assert permission("fan")[0] == ""
    (tmp_path / "jtop.sock").touch()
    assert permission("fan") == ("by jtop's service", None)
    assert permission("amdgpu")[0] == ""
