"""A controller that is killed after it changed a device setting: the next start restores the setting."""

import os
import signal
import subprocess
import sys

import pytest
from controls import Board

from epochmeter.machine.privilege import run_program
from epochmeter.power.knobs.requests import restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal

LIMIT = "sys/class/powercap/intel-rapl:0/constraint_1_power_limit_uw"
CONTROLLER = """
import sys, time
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.knobs.file_limits import open_rapl_limit

root = sys.argv[1]
knob = open_rapl_limit(root)
journal = RestoreJournal(root + "/state", root=root, boot_id="this", command="the killed run")
with AppliedSettings([(knob, knob.target_for(65))], journal, print):
    print("held", flush=True)
    time.sleep(60)
"""

STOPPED = """
import os, signal, sys, threading, time
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.knobs.file_limits import open_rapl_limit

def stop(number, frame):
    sys.exit(128 + number)

def hold():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=time.sleep, args=(10,), daemon=True).start()
    journal = RestoreJournal(root + "/state", root=root, boot_id="this", command="stopped")
    with AppliedSettings([(knob, knob.target_for(65))], journal, print):
        os.write(write, b".")
        while True:
            len(".")

root = sys.argv[1]
knob = open_rapl_limit(root)
read, write = os.pipe()
for attempt in range(80):
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
    if knob.get() != "95 W" or os.listdir(RestoreJournal(root + "/state", root=root, boot_id="", command="").folder):
        print("not restored after signals", attempt * 5, "us apart")
        break
"""


RESTORES = """
import sys
from epochmeter.power.knobs.requests import restore_after_kill
from epochmeter.power.knobs.restore_journal import RestoreJournal

journal = RestoreJournal(sys.argv[1] + "/state", root=sys.argv[1], boot_id="this", command="the next run")
restore_after_kill(journal, print)
"""


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path).with_rapl(packages=1)


@pytest.fixture
def journal(board):
    return RestoreJournal(str(board.root / "state"), root=str(board.root), boot_id="this", command="the next run")


@pytest.fixture
def controller(board):
    """A process that holds the limit at 65 W."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(board.root)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_next_start_restores_settings_of_a_killed_controller(board, journal, controller):
    controller.kill()
    controller.wait()
    assert board.read(LIMIT) == "65000000"
    messages = []
    restore_after_kill(journal, messages.append)
    assert board.read(LIMIT) == "95000000"
    assert messages[0].startswith("restored RAPL to 95 W")
    assert messages[0].endswith("left it at 65 W")
    assert "the killed run" in messages[0]
    assert journal.unrestored() == []


DIES = """
import os, signal, sys
from epochmeter.machine import privilege
from epochmeter.power.knobs import restore_journal
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.knobs.file_limits import open_rapl_limit

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

root, instant = sys.argv[1:]
write, keep = privilege.write_file, restore_journal.RestoreJournal.update
if instant == "before the change":
    privilege.write_file = die
if instant == "within the change":
    privilege.write_file = lambda file, text: (write(file, text), die())
if instant == "before the change is journaled":
    restore_journal.RestoreJournal.update = lambda self, entry: die() if entry.ours else keep(self, entry)
journal = restore_journal.RestoreJournal(root + "/state", root=root, boot_id="this", command="the killed run")
knob = open_rapl_limit(root)
with AppliedSettings([(knob, knob.target_for(65))], journal, print):
    pass
"""


@pytest.mark.parametrize(
    ("instant", "left_at"),
    [
        ("before the change", ("95000000", "95000000")),
        ("within the change", ("65000000", "95000000")),
        ("before the change is journaled", ("65000000", "65000000")),
    ],
)
def test_killed_at_any_instant_of_a_change_the_original_is_in_the_journal(board, journal, instant, left_at):
    board.with_rapl(packages=2)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", DIES, str(board.root), instant], env=environment)
    limits = LIMIT, LIMIT.replace("rapl:0", "rapl:1")
    assert (done.returncode, tuple(map(board.read, limits))) == (-signal.SIGKILL, left_at)
    (entry,) = journal.unrestored()
    assert (entry.was, entry.ours) == ("95 W", None)
    assert restore_after_kill(journal, print) == []
    assert tuple(map(board.read, limits)) == ("95000000", "95000000")
    assert journal.unrestored() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_do_not_reach_a_program_that_changes_a_setting(number):
    """Ctrl-C is sent to every program of the terminal; this program would stop halfway."""
    output = run_program(sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)}); print('to its end')")
    assert output == "to its end\n"


def test_settings_are_restored_after_two_simultaneous_signals(board):
    """Ctrl-C, and SIGTERM before, during and after the restoration."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output([sys.executable, "-c", STOPPED, str(board.root)], env=environment, text=True)
    assert output == ""


def test_second_start_waits_until_the_first_has_restored_settings(board, journal, controller):
    controller.kill()
    controller.wait()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with journal.locked():
        second = subprocess.Popen(
            [sys.executable, "-c", RESTORES, str(board.root)], env=environment, stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1.5)
        assert board.read(LIMIT) == "65000000"
        (entry,) = journal.unrestored()
        journal.remove(entry)  # the first is done, and 65 W is what somebody has set since
    assert second.communicate(timeout=10) == ("", None)
    assert board.read(LIMIT) == "65000000"
