"""A controller that is killed after it changed a device setting: the next start restores the setting."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from controls import Board

from epochmeter.machine.privilege import run_program
from epochmeter.power.knobs.restore import restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal

LIMITS = [f"sys/class/powercap/intel-rapl:{package}/constraint_1_power_limit_uw" for package in (0, 1)]
STOPPED = """
import os, signal, sys, threading, time
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.watt_limit import open_rapl_limit

def stop(number, frame):
    sys.exit(128 + number)

def hold():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=time.sleep, args=(10,), daemon=True).start()
    journal = RestoreJournal(root + "/state", root=root, command="stopped")
    with AppliedSettings([(knob, knob.target_for(65))], journal, print):
        os.write(write, b".")
        while True:
            len(".")

root = sys.argv[1]
knob = open_rapl_limit(root)
read, write = os.pipe()
for attempt in range(0, 80, 2):
    if not (child := os.fork()):
        try:
            hold()
        finally:
            os._exit(0)
    os.read(read, 1)
    os.kill(child, signal.SIGINT)
    end = time.perf_counter() + attempt * 5e-6
    while time.perf_counter() < end:
        pass
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    if knob.get() != "95 W" or os.listdir(RestoreJournal(root + "/state", root=root, command="").folder):
        print("not restored after signals", attempt * 5, "us apart")
        break
"""
DIES = """
import os, signal, sys
from epochmeter.machine import privilege
from epochmeter.power.knobs import restore_journal
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.watt_limit import open_rapl_limit

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

root, instant = sys.argv[1:]
write, keep = privilege.write_file, restore_journal.RestoreJournal.update
if instant == "before the change":
    privilege.write_file = die
if instant == "within the change":
    privilege.write_file = lambda file, text: (write(file, text), die())
if instant == "before the change is journaled":
    restore_journal.RestoreJournal.update = lambda self, entry: die() if entry.applied else keep(self, entry)
journal = restore_journal.RestoreJournal(root + "/state", root=root, command="the killed run")
knob = open_rapl_limit(root)
with AppliedSettings([(knob, knob.target_for(65))], journal, print):
    die()
"""


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path).with_rapl(packages=2)


@pytest.fixture
def journal(board):
    return RestoreJournal(str(board.root / "state"), root=str(board.root), command="the next run")


@pytest.fixture
def run_python(board):
    """run_python(program, *arguments) -> the exit code and output of the program, which gets the board's root."""

    def run(program, *arguments):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", program, str(board.root), *arguments]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize(
    ("instant", "left_at", "applied"),
    [
        ("before the change", (95, 95), None),
        ("within the change", (65, 95), None),
        ("before the change is journaled", (65, 65), None),
        ("after the change", (65, 65), "65 W"),
    ],
)
def test_next_start_restores_settings_of_a_controller_killed_at_any_instant(
    board, journal, run_python, instant, left_at, applied
):
    assert run_python(DIES, instant) == (-signal.SIGKILL, "")
    assert [board.read(limit) for limit in LIMITS] == [f"{watts}000000" for watts in left_at]
    (entry,) = journal.unrestored()
    assert (entry.original, entry.applied) == ("95 W", applied)
    messages = []
    assert restore_after_kill(journal, messages.append) == []
    assert [board.read(limit) for limit in LIMITS] == ["95000000"] * 2
    assert journal.unrestored() == []
    if applied:
        (message,) = messages
        assert re.match("restored RAPL to 95 W.*the killed run.*left it at 65 W$", message)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_do_not_reach_a_program_that_changes_a_setting(number):
    """Ctrl-C is sent to every program of the terminal; this program would stop halfway."""
    output = run_program(sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)}); print('to its end')")
    assert output == "to its end\n"


def test_settings_are_restored_after_two_simultaneous_signals(run_python):
    """Ctrl-C, and SIGTERM before, during and after the restoration."""
    assert run_python(STOPPED) == (0, "")


def test_second_start_waits_until_the_first_has_restored_settings(board, journal, run_python):
    run_python(DIES, "after the change")
    messages = []
    second = threading.Thread(target=restore_after_kill, args=(journal, messages.append))
    with journal.locked():
        second.start()
        second.join(0.5)
        assert second.is_alive()
        (entry,) = journal.unrestored()
        journal.remove(entry)  # the first is done, and 65 W is what somebody has set since
    second.join()
    assert (messages, board.read(LIMITS[0])) == ([], "65000000")
