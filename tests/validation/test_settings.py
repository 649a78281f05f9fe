"""Settings are changed, read back and restored on simulated machines, also after SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest
from controls import Board
from power.knobs.test_restore import CASES
from project import ROOT, wait_until

from epochmeter.power.knobs import knob as knob_module
from epochmeter.power.knobs.jetson import open_nvpmodel
from epochmeter.power.knobs.knob import SettingTarget
from epochmeter.power.knobs.restore import restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.knobs.watt_limit import open_rapl_limit
from epochmeter.validation.bench import ChangedSetting
from epochmeter.validation.settings import change_setting, other_target, permitted


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with its programs on the PATH, and its journal."""
    board = Board(tmp_path / "board")
    board.root.mkdir()
    monkeypatch.setenv("PATH", board.on_path())
    monkeypatch.setenv("AS_ROOT", "1")  # also if the tests run as root, without sudo
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return board, RestoreJournal(str(tmp_path / "state"), root=str(board.root), command="validate")


def opened(name, board):
    return {"nvpmodel": open_nvpmodel, "RAPL": open_rapl_limit}[name](str(board.root))


@pytest.mark.parametrize("name", ["nvpmodel", "RAPL"])
def test_setting_is_applied_and_restored_also_after_sigkill(machine, name):
    board, journal = machine
    CASES[name].machine(board)
    knob = opened(name, board)
    change = change_setting("power_limit", knob, journal, on_gpu=False)
    assert isinstance(change, ChangedSetting), change
    assert change.original == CASES[name].original
    assert change.applied == change.requested != change.original
    assert (change.restored, change.after_kill) == (change.original, change.original)
    assert (change.is_applied, change.is_restored, change.is_restored_after_kill) == (True, True, True)
    assert journal.unrestored() == []


def test_change_without_effect_is_no_applied_setting(machine, monkeypatch):
    monkeypatch.setattr(knob_module, "SETTLE_LIMIT_S", 0.2)
    board, journal = machine
    board.with_modes("nx").put(no_effect="")
    problem = change_setting("power_limit", opened("nvpmodel", board), journal, on_gpu=False)
    assert problem.message.startswith("cannot set nvpmodel")
    assert board.mode() == 5
    assert journal.unrestored() == []


@pytest.mark.parametrize(("now", "other"), [("20 W", "15 W"), ("15 W", "10 W"), ("10 W", "15 W")])
def test_other_limit_is_the_next_lower_one_else_the_next_higher(now, other):
    limits = [SettingTarget(f"{watts} W", watts) for watts in (10, 15, 20)]
    knob = SimpleNamespace(get=lambda: now, limits=lambda: limits, is_equal=str.__eq__)
    assert other_target(knob).setting == other


def test_setting_without_permission_is_not_opened(machine, monkeypatch):
    board, _ = machine
    monkeypatch.delenv("AS_ROOT")
    board.with_modes("nx").put(no_sudo="")
    found = permitted({"power_limit": lambda: opened("nvpmodel", board), "fan": lambda: None})
    assert list(found) == ["power_limit"]
    if os.geteuid():
        assert found["power_limit"].message == "this user may not change nvpmodel"


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2])
def test_nothing_is_left_changed_after_a_kill_at_any_moment(machine, after_s):
    """`validate` is killed while it changes a setting; the next start restores it."""
    board, journal = machine
    board.with_modes("nx")
    program = (
        "import sys; from epochmeter.power.knobs.jetson import open_nvpmodel\n"
        "from epochmeter.power.knobs.restore_journal import RestoreJournal\n"
        "from epochmeter.validation.settings import change_setting\n"
        "journal = RestoreJournal(sys.argv[1], root=sys.argv[2], command='validate')\n"
        "print('begun', flush=True)\n"
        "while True: change_setting('power_limit', open_nvpmodel(sys.argv[2]), journal, on_gpu=False)\n"
    )
    arguments = [sys.executable, "-c", program, str(journal.folder.parent), str(board.root)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        process.stdout.readline()
        time.sleep(after_s)
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not members(process.pid), 30)  # such as a program that still changes the setting
    wait_for_no_holder(journal)
    assert restore_after_kill(journal, lambda text: None) == []
    assert board.mode() == 5
    assert journal.unrestored() == []


def members(group):
    """Return the processes of a process group that run."""
    found = []
    for process in psutil.process_iter(["status"]):
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            is_alive = process.info["status"] != psutil.STATUS_ZOMBIE
            found += [process] if is_alive and os.getpgid(process.pid) == group else []
    return found


def wait_for_no_holder(journal):
    """The process that held the setting has ended with its parent, at the latest after a moment."""
    wait_until(lambda: len(journal.unrestored()) == len(list(journal.folder.glob("*.json"))))
