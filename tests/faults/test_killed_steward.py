"""A steward that is killed with a knob turned: the next one puts it back."""

import os
import signal
import subprocess
import sys

import pytest
from controls import Board

from trainmeter.power.knobs.demands import put_back
from trainmeter.power.knobs.desk import Desk
from trainmeter.power.knobs.privilege import answer

LIMIT = "sys/class/powercap/intel-rapl:0/constraint_1_power_limit_uw"
HOLDS = """
import sys, time
from trainmeter.power.knobs.desk import Desk
from trainmeter.power.knobs.knob import held
from trainmeter.power.knobs.rapl_limit import open_rapl_limit

root = sys.argv[1]
knob = open_rapl_limit(root)
with held([(knob, knob.wish(65))], Desk(root + "/state", root=root, boot_id="this", command="the killed run"), print):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def board(tmp_path):
    return Board(tmp_path).with_rapl(packages=1)


@pytest.fixture
def desk(board):
    return Desk(str(board.root / "state"), root=str(board.root), boot_id="this", command="the next run")


@pytest.fixture
def steward(board):
    """A process that holds the limit at 65 W."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(board.root)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_while_it_lives_what_it_holds_is_left_to_it(board, desk, steward):
    put_back(desk, print)
    assert board.read(LIMIT) == "65000000"


def test_killed_it_puts_nothing_back_and_the_next_start_does(board, desk, steward):
    steward.kill()
    steward.wait()
    assert board.read(LIMIT) == "65000000"
    said = []
    put_back(desk, said.append)
    assert board.read(LIMIT) == "95000000"
    assert said[0].startswith("RAPL is back at 95 W; it was left at 65 W by a run that was killed")
    assert "the killed run" in said[0]
    assert desk.left() == []


def test_what_somebody_has_set_since_is_left_theirs(board, desk, steward):
    steward.kill()
    steward.wait()
    board.put(**{LIMIT: 80_000_000})
    said = []
    put_back(desk, said.append)
    assert board.read(LIMIT) == "80000000"
    assert "somebody else set it to 80 W: left so. It was 95 W." in said[0]
    assert desk.left() == []


def test_after_a_reboot_it_is_forgotten(board, desk, steward):
    steward.kill()
    steward.wait()
    board.put(**{LIMIT: 65_000_000})  # as its firmware has it, and not we
    desk.boot_id = "the next boot"
    put_back(desk, print)
    assert board.read(LIMIT) == "65000000"
    assert desk.left() == []


def test_what_cannot_be_put_back_is_said_with_the_command_and_offered_again(board, desk, steward):
    steward.kill()
    steward.wait()
    board.put(**{"sys/class/powercap/intel-rapl:0/enabled": 0})
    with pytest.raises(RuntimeError, match=r"RAPL could not be put back to 95 W: .*by hand: echo 95000000 \| sudo tee"):
        put_back(desk, print)
    (memo,) = desk.left()
    assert memo.was == "95 W"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_in_the_terminal_does_not_reach_a_program_that_turns_a_knob(number):
    """It is sent to every program of the terminal: this one would end half way."""
    said = answer(sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)}); print('to its end')")
    assert said == "to its end\n"
