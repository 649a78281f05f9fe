"""The running script: its processes are threads of the test, connected as agents are."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from default_jobs import job_of

from epochmeter.agent.recorder import UnansweredConnection
from epochmeter.config.script import ATTACHED
from epochmeter.results.rank_merge import merge_ranks
from epochmeter.run import launch, script, worker_process
from epochmeter.run.script import ScriptProcess, check_trained, clipped, passed_signals, start_script
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.protocol import (
    Built,
    Finished,
    NotMeasured,
    RankWindow,
    TraceFailed,
    WindowClosed,
    WindowMeasured,
    WindowOpening,
)

SECOND = 10**9
PARTS = {
    "e2e_s": 4.0, "data_stall_s": 1.0, "host_wait_s": 1.5, "loader_start_s": 0.5, "compute_s": 3.0,
    "overhead_s": 0.0, "clock_residual_s": 0.0, "steps": 8, "samples": 64,
}  # fmt: skip


def window(opened_s, closed_s, **parts):
    times = int(opened_s * SECOND), int(closed_s * SECOND)
    return RankWindow(*times, 0, {**PARTS, **parts}, [], False, 0.0, 0.0, None)


class Ranks:
    """A controller's end of a script, and the connections of its ranks."""

    def __init__(self, listener):
        self.listener = listener
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.controller = ScriptProcess(self.process, listener)
        self.messages = self.controller.messages()

    def join(self, rank, is_first=False):
        # No rank waits for a reply here, not even the first.
        connection = UnansweredConnection(self.listener.getsockname(), rank, is_first)
        for _ in ("accept", "Joined"):
            self.controller._receive_any(1.0)
        return connection

    def send(self, connection, measured, name="epoch"):
        connection.request(WindowClosed(measured.opened_ns, measured.closed_ns, name, 0))
        connection.request(WindowMeasured([measured], []))

    def merged(self):
        return next(message.ranks for message in self.messages if isinstance(message, WindowMeasured))

    def end(self):
        if not self.process.stdin.closed:
            self.process.communicate(b"\n")


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(script, "RANK_WAIT_S", 0.2)
    monkeypatch.setattr(script, "has_exited", lambda pid: True)
    with launch.listening_socket() as listener:
        ranks = Ranks(listener)
        yield ranks
        ranks.end()
        ranks.controller.terminate()


def test_windows_of_all_ranks_at_the_same_time_are_merged(ranks):
    other, first = ranks.join(1), ranks.join(0, is_first=True)
    ranks.send(other, window(1, 2), "val")
    ranks.send(other, window(10, 14))
    ranks.send(first, window(10, 14, samples=63))
    merged = merge_ranks(ranks.merged())
    assert (merged.parts["samples"], merged.parts["e2e_s"], merged.rank_max["e2e_s"]) == (127, 4.0, 4.0)
    ranks.send(first, window(20, 24))
    ranks.send(other, window(20, 25, e2e_s=5.0))
    merged = merge_ranks(ranks.merged())
    assert (merged.parts["e2e_s"], merged.closed_ns) == (4.5, 24 * SECOND)


def test_rank_without_a_window_is_waited_for_once_and_sums_are_absent(ranks):
    first, other = ranks.join(0, is_first=True), ranks.join(1)
    for number in (1, 2):
        ranks.send(first, window(10 * number, 10 * number + 4))
        (only,) = ranks.merged()
        assert "samples" not in only.parts
        assert only.parts["e2e_s"] == 4.0
    assert ranks.controller.remarks == [script.NO_WINDOW.format(1)]
    other.send(NotMeasured("why"))
    ranks.send(other, window(30, 34))
    ranks.send(first, window(30, 34))
    assert len(ranks.merged()) == 2
    assert ranks.controller.remarks[1:] == ["rank 1: why"]


def test_rank_that_was_late_once_is_waited_for_again(ranks, monkeypatch):
    first, other = ranks.join(0, is_first=True), ranks.join(1)
    ranks.send(first, window(10, 14))
    assert len(ranks.merged()) == 1
    ranks.send(other, window(10, 14))
    monkeypatch.setattr(script, "RANK_WAIT_S", 60.0)
    ranks.send(first, window(20, 24))
    threading.Timer(0.2, ranks.send, (other, window(20, 24))).start()
    assert len(ranks.merged()) == 2


def test_rank_that_ended_is_not_waited_for_and_a_second_first_rank_is_refused(ranks, monkeypatch):
    monkeypatch.setattr(script, "RANK_WAIT_S", 60.0)
    other, first = ranks.join(1), ranks.join(0, is_first=True)
    ranks.send(other, window(10, 14))
    other.close()
    second = ranks.join(0, is_first=True)
    for opened_s, count in ((10, 2), (20, 1)):
        ranks.send(first, window(opened_s, opened_s + 4))
        assert len(ranks.merged()) == count
    with closing(second):
        assert second._socket.recv(1) == b""
    assert ranks.controller.remarks == [script.ANOTHER_PROCESS]


def test_messages_that_arrive_with_the_first_one_of_a_refused_process_are_dropped(ranks):
    first = ranks.join(0, is_first=True)
    with closing(UnansweredConnection(ranks.listener.getsockname(), 0, True)) as second:
        second.send(Built({}, {}))
        for _ in ("accept", "Joined and Built"):
            ranks.controller._receive_any(1.0)
        ranks.send(first, window(10, 14))
        assert isinstance(next(ranks.messages), WindowClosed)


def test_process_that_measured_nothing_is_replaced_and_reasons_are_noted_once(ranks):
    reader = ranks.join(0, is_first=True)
    for reason in ("read ahead", "read ahead", "no step"):
        reader.send(NotMeasured(reason))
        ranks.controller._receive_any(1.0)
    assert ranks.controller.remarks == ["read ahead", "no step"]
    reader.send(WindowOpening("epoch", 0, 8))
    ranks.controller._receive_any(1.0)
    reader.close()
    ranks.controller._receive_any(1.0)
    ranks.send(ranks.join(0, is_first=True), window(10, 14))
    assert len(ranks.merged()) == 1
    ranks.end()
    list(ranks.messages)
    assert ranks.controller.remarks == []


def test_run_fails_if_other_gpus_are_metered_than_those_of_the_ranks(ranks):
    ranks.join(0, is_first=True)
    ranks.join(1).request(Built({}, {"gpu": {"uuid": "bb"}}))
    ranks.controller._receive_any(1.0)

    def check(*gpus):
        plan = SimpleNamespace(record=Mock(), gpus=gpus, job=job_of())
        check_trained(ranks.controller, plan, script.NO_PASS)

    check("GPU-aa", "GPU-bb")
    with pytest.raises(RuntimeError, match="GPU-bb trained, but GPU-aa is metered"):
        check("GPU-aa")
    with pytest.raises(RuntimeError, match="2 ranks trained, but GPU-aa,GPU-bb,GPU-cc is metered"):
        check("GPU-aa", "GPU-bb", "GPU-cc")


def test_failed_trace_is_noted_and_messages_end_with_the_script_although_a_child_holds_its_connection(ranks):
    first = ranks.join(0, is_first=True)
    first.send(TraceFailed("no trace: why"))
    assert next(ranks.messages) == TraceFailed("no trace: why")
    assert ranks.controller.trace_error == "no trace: why"
    ranks.end()
    assert list(ranks.messages) == []


@pytest.mark.parametrize(
    ("last", "has_exited", "is_closed", "is_noted"),
    [
        (None, False, True, True),
        (None, True, True, False),
        (WindowOpening("epoch", 0, 8), True, True, True),
        (WindowOpening("epoch", 0, 8), True, False, True),
        (WindowClosed(1, 2), True, False, False),
        (Finished(), False, True, False),
    ],
    ids=["closed", "ended", "ended in a window", "ended in a window, but not its child", "child", "finished"],
)
def test_connection_that_was_lost_during_training_is_noted(ranks, monkeypatch, last, has_exited, is_closed, is_noted):
    monkeypatch.setattr(script, "has_exited", lambda pid: has_exited)
    connections = ranks.join(0, is_first=True), ranks.join(1)
    for connection in connections:
        if last is not None:
            connection.send(last)
        if is_closed:
            connection.close()
    ranks.end()
    list(ranks.messages)
    assert ranks.controller.remarks == [script.LOST.format(name) for name in ("the script", "rank 1") if is_noted]


@pytest.mark.parametrize(("more", "failure"), [(1, "oom"), (0, None)])
@pytest.mark.parametrize("is_rank", [True, False])
def test_script_of_which_the_kernel_killed_a_process_ran_out_of_memory(ranks, monkeypatch, is_rank, more, failure):
    """A launcher ends with an exit code if one of its ranks is killed."""
    monkeypatch.setattr(worker_process, "oom_kill_count", lambda: ranks.controller._oom_kills + more)
    if is_rank:
        monkeypatch.setattr(ranks.controller._process, "wait", lambda: 1)
    ranks.process.kill()
    with pytest.raises(WorkerError) as raised:
        list(ranks.messages)
    assert raised.value.failure == (failure or ("exception" if is_rank else "killed"))


def test_signal_that_arrives_before_the_script_starts_reaches_it():
    with passed_signals(repeated=False) as pass_to:
        signal.raise_signal(signal.SIGTERM)
        process = subprocess.Popen(["sleep", "60"])
        pass_to(process)
        assert process.wait(10) == -signal.SIGTERM


def test_controller_whose_script_ended_during_its_start_ends_too(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setenv(ATTACHED, str(writer))
    plan = SimpleNamespace(job=job_of(measure={"command": ["own.py"]}))
    with launch.listening_socket() as listener:
        worker = start_script(plan, "{}", Mock(), listener)
        with pytest.raises(WorkerError, match="the script ended, but did not close its Meter"):
            list(worker.messages())
        worker.terminate()


def test_time_before_the_first_rank_is_removed_from_the_time_to_the_first_batch_and_then_from_compute():
    first = window(12, 14)
    early = clipped(window(10, 14), first)
    assert (early.opened_ns, early.closed_ns) == (first.opened_ns, first.closed_ns)
    expected = {"e2e_s": 2.0, "data_stall_s": 0.5, "host_wait_s": 1.0, "loader_start_s": 0.0, "compute_s": 1.5}
    assert early.parts == {**PARTS, **expected}
    late_request = clipped(window(10, 14, compute_s=2.0, overhead_s=1.0, first_gap_s=1.25), first)
    assert late_request.parts == {**PARTS, **expected, "compute_s": 1.25, "overhead_s": 0.25}
    assert clipped(window(12.5, 13, first_gap_s=0.1), first) == window(12.5, 13)
    without_loader = window(10, 14)._replace(parts={"e2e_s": 4.0, "steps": 8})
    assert clipped(without_loader, first).parts == {"e2e_s": 2.0, "steps": 8}
