"""Whether this process may change a setting, checked without changing it."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from controls import Board

from epochmeter.machine import privilege
from epochmeter.machine.privilege import sudoers_rule
from epochmeter.power.knobs import permission as permissions
from epochmeter.power.knobs.jetson import open_fan, open_jetson_clocks, open_nvpmodel
from epochmeter.power.knobs.permission import permission
from epochmeter.power.knobs.watt_limit import open_rapl_limit

NVML = SimpleNamespace(name="NVML", files=[], commands=[])
OPENED = {
    "RAPL": lambda board: open_rapl_limit(board.with_rapl().root),
    "fan": lambda board: open_fan(board.with_service_fan().root),
    "nvpmodel": lambda board: open_nvpmodel(board.with_modes("nano").root),
    "jetson_clocks": lambda board: open_jetson_clocks(board.with_clocks().root, board.root / "state"),
}


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(permissions, "JTOP_SOCKET", str(tmp_path / "jtop.sock"))
    monkeypatch.setattr(privilege, "SYSFS", tmp_path)
    for name in permissions.ZEUSD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    board = Board(tmp_path)
    board.put(**{"sys/devices/system/cpu/cpu3/online": 1})  # which power modes switch on and off
    return board


@pytest.fixture
def user(board, monkeypatch):
    """Function that makes sudo run only the given commands for an ordinary user without write permission."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(privilege, "can_open_for_writing", lambda file: False)

    def allowed(*commands):
        cases = "\n".join(f"'{' '.join(map(str, command))}') cat; exit;;" for command in commands)
        board.program("sudo", f'shift\necho "$*" >> "$ROOT/asked"\ncase "$*" in {cases}\nesac\n'
                              'echo "sudo: a password is required" >&2\nexit 1')  # fmt: skip

    allowed()
    return allowed


ALL, OF_A_CONTAINER = "000001ffffffffff", "00000000a80425fb"  # the second is Docker's default
HOST, ROOTLESS = "         0          0 4294967295\n", "         0     100000      65536\n"


@pytest.mark.parametrize(
    ("capabilities", "uid_map", "may"),
    [(ALL, HOST, True), (OF_A_CONTAINER, HOST, False), (ALL, ROOTLESS, False), ("0000000000200000", HOST, True)],
    ids=["root", "container", "rootless container", "CAP_SYS_ADMIN alone"],
)
def test_gpu_limit_needs_cap_sys_admin_of_the_host(board, monkeypatch, tmp_path, capabilities, uid_map, may):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privilege, "PROCESS", tmp_path)
    (tmp_path / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\nSeccomp:\t0\n")
    (tmp_path / "uid_map").write_text(uid_map)
    how, remedy = permission(NVML)
    assert how == ("as root" if may else "")
    assert may or "--cap-add SYS_ADMIN" in remedy


@pytest.mark.parametrize("name", OPENED)
def test_user_without_rights_gets_a_remedy_and_root_of_a_container_another_one(board, user, monkeypatch, name):
    opened = OPENED[name](board)
    how, remedy = permission(opened)
    assert (how, "usermod -aG jtop" in remedy, "NOPASSWD" in remedy) == ("", name != "RAPL", name != "jetson_clocks")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    how, remedy = permission(opened)
    assert (how, "read-only here" in remedy, "sudo" in remedy) == ("", True, False)


def test_all_files_of_a_limit_must_be_allowed_and_none_is_opened_elsewhere(board, user, monkeypatch):
    limits = OPENED["RAPL"](board)
    user(("tee", limits.files[0]))
    assert permission(limits)[0] == ""
    user(*(("tee", file) for file in limits.files))
    assert permission(limits) == ("by sudo", None)
    assert [file.read_text() for file in limits.files] == ["95000000\n", "95000000\n"]
    (board.root / "asked").unlink()
    monkeypatch.setattr(privilege, "SYSFS", Path("/proc"))
    assert permission(limits)[0] == ""
    assert not (board.root / "asked").exists()
    monkeypatch.setattr(privilege, "can_open_for_writing", lambda file: file == limits.files[0])
    assert permission(limits)[0] == ""
    monkeypatch.setattr(privilege, "can_open_for_writing", lambda file: True)
    assert permission(limits) == ("directly", None)


def test_program_of_the_board_is_needed_and_may_be_allowed_by_sudo(board, user, monkeypatch):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert privilege.run_program("sh", "-c", "echo $LC_ALL") == "C\n", "sudo's messages are in English"
    mode = OPENED["nvpmodel"](board)
    user(("nvpmodel", "-q"))
    assert permission(mode) == ("by sudo", None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (board.programs / "nvpmodel").unlink()
    assert permission(mode) == ("", "make the board's own nvpmodel available here, or use jtop's service as its user")


def test_jtops_service_is_used_for_its_settings(board, user, tmp_path, monkeypatch):
    monkeypatch.setattr(permissions, "find_spec", lambda name: object())
    assert permission(OPENED["fan"](board))[0] == ""
    (tmp_path / "jtop.sock").touch()
    assert [permission(OPENED[name](board))[0] for name in ("fan", "RAPL")] == ["by jtop's service", ""]


@pytest.mark.parametrize("name", ["RAPL", "fan", "nvpmodel"])
def test_suggested_rule_allows_exactly_the_commands_that_are_run(board, name, tmp_path):
    asked = OPENED[name](board)
    added = r"echo '?(.+?)'? \| sudo EDITOR='tee -a' visudo -f /etc/sudoers\.d/"
    who, _, listed = re.search(added, sudoers_rule(asked.commands))[1].partition(" ALL=(root) NOPASSWD: ")
    commands = [re.sub(r"\\(.)", r"\1", command).split() for command in listed.split(", ")]
    assert [(Path(program).name, *arguments) for program, *arguments in commands] == list(map(tuple, asked.commands))
    assert not re.search(r"(?<!\\)[*?\[]", listed)
    if visudo := shutil.which("visudo", path=privilege.SECURE_PATH):
        (tmp_path / "rule").write_text(f"{who} ALL=(root) NOPASSWD: {listed}\n")
        subprocess.run([visudo, "-c", "-f", tmp_path / "rule"], check=True, capture_output=True)


@pytest.mark.parametrize(("setting", "refused"), [("locked", "--store"), ("free", "--restore")])
def test_no_rule_is_suggested_for_commands_that_can_write_any_file(board, user, setting, refused):
    if setting == "free":
        board.put(**{"state/l4t_dfs.conf": ""})
    clocks = OPENED["jetson_clocks"](board)
    with pytest.raises(RuntimeError, match=rf"(?s)\A(?!.*NOPASSWD).*{refused}.*usermod -aG jtop"):
        clocks.set(setting)
