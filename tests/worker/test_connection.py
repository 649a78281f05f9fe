import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from epochmeter.worker.connection import Link, Together

SOURCE = Path(__file__).parents[2] / "src"
HALF_A_SECOND_NS = 500_000_000


class Steward:
    """The other end of a real socket: reads lines, writes answers."""

    def __init__(self, connection):
        self.connection = connection
        self.lines = connection.makefile("r", encoding="utf-8")

    def heard(self):
        return json.loads(self.lines.readline())

    def answers(self, **facts):
        self.connection.sendall((json.dumps(facts) + "\n").encode())

    def gone(self):
        self.lines.close()
        self.connection.close()


@pytest.fixture
def listener(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "link"))
        listener.listen(1)
        yield listener


@pytest.fixture
def link(listener):
    return Link(listener.getsockname())


@pytest.fixture
def steward(listener, link):
    steward = Steward(listener.accept()[0])
    assert steward.heard() == {"kind": "joined", "rank": 0, "speaks": True}
    yield steward
    steward.gone()


def alive(pid):
    """Whether a process is there and runs; one that is dead but not yet buried is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_is_said_is_a_line_of_json(link, steward):
    link.say("note", text="zwölf\nlines")
    assert steward.heard() == {"kind": "note", "text": "zwölf\nlines"}


def test_asking_waits_for_the_answer(link, steward):
    answers = []
    asking = threading.Thread(target=lambda: answers.append(link.ask("open", epoch=3)))
    asking.start()
    assert steward.heard() == {"kind": "open", "epoch": 3}
    assert answers == []
    steward.answers(stop=True)
    asking.join(5)
    assert answers == [{"stop": True}]


def test_a_steward_that_is_gone_ends_the_worker(link, steward):
    steward.gone()
    with pytest.raises((SystemExit, BrokenPipeError)):
        link.ask("open")


def test_a_steward_that_goes_instead_of_answering_ends_the_worker(link, steward):
    steward_goes = threading.Thread(target=lambda: (steward.heard(), steward.connection.shutdown(socket.SHUT_RDWR)))
    steward_goes.start()
    with pytest.raises(SystemExit, match="the steward is gone"):
        link.ask("open")
    steward_goes.join(5)


def test_progress_is_told_twice_a_second_at_most(link, steward):
    for step in range(1, 2001):  # a step each millisecond, from some moment on
        link.progress(step, now_ns=7_000_000_000 + step * 1_000_000)
    link.say("end")
    told = []
    while (message := steward.heard())["kind"] == "progress":
        told.append(message["steps"])
    assert told == [1, 501, 1001, 1501]


def test_a_steward_that_is_stopped_and_reads_nothing_holds_up_no_training(link, steward):
    def train():
        for step in range(1, 10_001):  # more than a socket has room for
            link.progress(step, now_ns=step * HALF_A_SECOND_NS)

    training = threading.Thread(target=train, daemon=True)
    training.start()
    training.join(30)
    assert not training.is_alive()
    told = threading.Thread(target=link.say, args=("end",), daemon=True)
    told.start()  # that waits until there is room for it
    steps = []
    while (message := steward.heard())["kind"] == "progress":
        steps.append(message["steps"])
    assert steps == list(range(1, len(steps) + 1)), "those that there was room for, each of them whole"
    assert message == {"kind": "end"}


def test_what_goes_with_progress_is_asked_for_only_when_it_is_told(link, steward):
    asked = []
    for step in range(1, 1001):
        link.progress(step, step * 1_000_000 + HALF_A_SECOND_NS, facts=lambda: asked.append(1) or {"loss": 0.5})
    assert len(asked) == 2
    assert [steward.heard()["loss"] for _ in asked] == [0.5, 0.5]


def test_a_slow_step_is_told_at_once(link, steward):
    link.progress(1, now_ns=7 * HALF_A_SECOND_NS)
    link.progress(2, now_ns=8 * HALF_A_SECOND_NS)
    assert [steward.heard()["steps"] for _ in range(2)] == [1, 2]


class Ranks:
    """A strategy of two ranks that have all come, and what the other tells."""

    def __init__(self, rank, told, speaks=None):
        self.rank, self.told, self.met = rank, told, 0
        self.speaks = rank == 0 if speaks is None else speaks

    def share(self, told):
        self.met += 1

    def gather(self, told):
        return [self.told, told] if self.rank else [told, self.told]


def test_of_ranks_the_first_asks_once_all_have_come_and_its_answer_is_alls(link, steward):
    steward.answers(stop=True)
    first, second = Ranks(0, None), Ranks(1, {"stop": True})
    assert Together(link, first).ask("closed") == {"stop": True}
    assert first.met == 1
    assert Together(None, second).ask("closed") == {"stop": True}
    assert steward.heard() == {"kind": "closed"}


def test_the_first_rank_of_each_node_asks_its_own_steward_and_all_hear_all_answers(link, steward):
    steward.answers(node="n1")
    second = Ranks(1, {"node": "n0"}, speaks=True)
    assert Together(link, second).ask_all("closed") == [{"node": "n0"}, {"node": "n1"}]


def test_of_ranks_the_first_alone_tells_of_progress(link, steward):
    for told in (Together(None, Ranks(1, None)), Together(link, Ranks(0, None))):
        told.progress(3, now_ns=HALF_A_SECOND_NS)
    assert steward.heard()["kind"] == "progress"


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(child.stdout.readline().decode(), end="", flush=True)
child.wait()
"""
CHILD = """
import os, time
from epochmeter.worker.connection import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_worker_dies_with_its_parent_however_that_ends():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    with parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 10
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)
