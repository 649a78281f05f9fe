"""The running script: its processes are connections of the test, as agents make them."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from default_jobs import job_of

from epochmeter.agent.script_connection import ScriptConnection
from epochmeter.config.interpreter import ENVIRONMENT
from epochmeter.config.script import ATTACHED
from epochmeter.machine.cpu_load import family
from epochmeter.run import launch, replaying, script, worker_process
from epochmeter.run.script import ScriptProcess, check_trained, ended_by_slurm, passed_signals, start_script
from epochmeter.run.worker_process import WorkerError, worker_error
from epochmeter.shared.problem import Problem, problem_of
from epochmeter.shared.process_identity import has_exited
from epochmeter.shared.protocol import (
    Asked,
    Finished,
    Loaded,
    NotMeasured,
    NotReplayed,
    PassOpening,
    Proceed,
    RankFailed,
    Recorded,
    Traced,
    TraceFailed,
)
from epochmeter.shared.record import WORKER_LOG


class Running:
    """A controller's end of a script, and connections of its processes."""

    def __init__(self, listener):
        self.listener = listener
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.script = ScriptProcess(self.process, listener)

    def join(self, rank=0, is_first=True):
        connection = ScriptConnection(self.listener.getsockname(), rank, is_first)
        for _ in ("accept", "Joined"):
            assert self.script.receive(1.0)
        return connection

    def end(self):
        if not self.process.stdin.closed:
            self.process.communicate(b"\n")


@pytest.fixture
def running(monkeypatch):
    monkeypatch.setattr(script, "has_exited", lambda pid: True)
    with launch.listening_socket() as listener:
        running = Running(listener)
        yield running
        running.end()
        running.script.terminate()


def test_border_of_a_pass_wakes_the_controller_at_once(running):
    connection = running.join()
    connection.wake()
    begun_s = time.perf_counter()
    assert running.script.receive(600.0)
    assert running.script.is_at_border
    assert time.perf_counter() - begun_s < 300, "it has not waited for its limit"
    assert running.script.receive(0.01)
    assert not running.script.is_at_border


def test_messages_are_sorted_and_questions_are_answered(running):
    first, other = running.join(), running.join(1, is_first=False)
    traced = Traced(1, 2, 3, [])
    failed, unmeasured = TraceFailed(Problem("why")), NotMeasured(Problem("read"))
    for message in (PassOpening(), Asked("epoch", "7"), traced, failed, unmeasured):
        first.send(message)
    for _ in range(2):
        other.send(unmeasured)
    while len(running.script.remarks) < 2:
        running.script.receive(1.0)
    assert running.script.remarks == [Problem("read"), Problem("rank 1: read")]
    assert running.script.traced == [traced, failed]
    ((connection, question),) = running.script.questions
    assert (question, running.script.openings) == (Asked("epoch", "7"), [connection])
    for reply in (Proceed(), Recorded(False, {"epoch/e2e_s": 2.0}, "")):
        running.script.answer(connection, reply)
        assert first._reply() == reply


def test_messages_of_a_replayed_script_are_kept(running):
    connection = running.join()
    failed = NotReplayed(Problem("no copies"))
    for message in (Loaded(5), failed):
        connection.send(message)
    while running.script.not_replayed is None:
        running.script.receive(1.0)
    assert (running.script.loaded, running.script.not_replayed) == ([Loaded(5)], failed.problem)
    running.end()
    with pytest.raises(WorkerError, match="no copies"):
        running.script.check_end()


def test_only_a_replayed_script_is_ended_with_its_descendants(tmp_path, monkeypatch):
    monkeypatch.setattr(replaying, "GRACE_S", 0.5)
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    lines = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {ignores!r}]); time.sleep(60)"
    plan = SimpleNamespace(record=Mock(folder=tmp_path))
    with launch.listening_socket() as listener:
        plan.job = job_of(measure={"command": [sys.executable, "-c", lines], "replay": True})
        started = start_script(plan, {"socket": ""}, Mock(), listener)
        while (tmp_path / WORKER_LOG).read_text() != "1\n":
            time.sleep(0.05)
        members = [*family(started.pids)]
        started.end_replayed("it is known")
        assert len(members) == 2
        assert all(map(has_exited, members))
        started.check_end()
        assert (started.exit_code, started.end_note) == (0, "it is known")
        started.terminate()


def test_process_that_has_ended_is_named_and_the_script_runs_until_it_ends_itself(running):
    connection = running.join()
    connection.close()
    assert running.script.receive(1.0)
    assert running.script.ended == {str(os.getpid())}
    assert running.script.ended_ns is None
    before_ns = time.monotonic_ns()
    running.end()
    assert not running.script.receive(1.0)
    assert before_ns < running.script.ended_ns < time.monotonic_ns()
    running.script.check_end()


def test_script_that_is_stopped_has_not_failed(running):
    running.script.stop()
    running.script.stop()
    running.process.wait()
    running.script.check_end()
    assert (running.process.returncode, running.script.exit_code) == (-signal.SIGTERM, 0)


def test_script_is_ending_when_all_that_was_measured_has_ended(running):
    begins = running.script.is_ending
    first, second = running.join(), running.join(rank=1, is_first=False)
    first.send(Finished())
    first.close()
    assert running.script.receive(1.0)
    between = running.script.is_ending
    second.close()
    assert running.script.receive(1.0)
    assert (begins, between, running.script.is_ending) == (False, False, True)


def test_attached_script_ends_with_its_last_connection_and_fails_with_its_error(monkeypatch):
    for message, error in ((RankFailed(Problem("why"), 0), "why"), (Finished(), None), (None, "did not close")):
        with launch.listening_socket() as listener:
            killed = worker_error("killed", "the script ended, but did not close its Meter")
            attached = ScriptProcess(worker_process.StartingScript(), listener, killed)
            connection = ScriptConnection(listener.getsockname(), 0, True)
            if message is not None:
                connection.send(message)
            connection.close()
            while attached.receive(1.0):
                pass
            if error:
                with pytest.raises(WorkerError, match=error):
                    attached.check_end()
            else:
                attached.check_end()
            attached.terminate()


@pytest.mark.parametrize(("more", "failure"), [(1, "oom"), (0, None)])
@pytest.mark.parametrize("is_rank", [True, False])
def test_script_of_which_the_kernel_killed_a_process_ran_out_of_memory(running, monkeypatch, is_rank, more, failure):
    """A launcher ends with an exit code if one of its ranks is killed."""
    monkeypatch.setattr(worker_process, "oom_kill_count", lambda: running.script._oom_kills + more)
    if is_rank:
        monkeypatch.setattr(running.script._process, "wait", lambda: 1)
    running.process.kill()
    with pytest.raises(WorkerError) as raised:
        running.script.check_end()
    assert problem_of(raised.value).code == (failure or ("exception" if is_rank else "killed"))


def test_run_fails_if_other_gpus_are_metered_than_those_of_the_ranks():
    windows = Mock(gpus={"bb"}, rank_count=2)

    def check(*gpus):
        check_trained(windows, SimpleNamespace(record=Mock(), gpus=gpus, job=job_of()), ["unseen"])

    check("GPU-aa", "GPU-bb")
    with pytest.raises(RuntimeError, match="GPU-bb trained, but GPU-aa is metered"):
        check("GPU-aa")
    with pytest.raises(RuntimeError, match="2 ranks trained, but GPU-aa,GPU-bb,GPU-cc is metered"):
        check("GPU-aa", "GPU-bb", "GPU-cc")
    empty = SimpleNamespace(record=Mock(windows=list), gpus=[], job=job_of())
    with pytest.raises(RuntimeError, match="no epoch of training was measured: one; two"):
        check_trained(windows, empty, ["one", "two"])


@pytest.mark.parametrize(("address", "hint"), [("auto", script.RAY_HINT), ("", script.LOOPS_HINT)])
def test_processes_of_a_ray_cluster_that_runs_already_are_the_hint(monkeypatch, address, hint):
    monkeypatch.setattr(script, "users_environment", lambda: {"RAY_ADDRESS": address})
    empty = SimpleNamespace(record=Mock(windows=list), gpus=[], job=job_of())
    with pytest.raises(RuntimeError) as raised:
        check_trained(Mock(gpus=set(), rank_count=1), empty, ["unseen"])
    assert problem_of(raised.value).hint == hint


def test_signal_that_arrives_before_the_script_starts_reaches_it():
    with passed_signals(repeated=False) as (pass_to, _):
        signal.raise_signal(signal.SIGTERM)
        process = subprocess.Popen(["sleep", "60"])
        pass_to(process)
        assert process.wait(10) == -signal.SIGTERM


def end_by(received, failure):
    """Return the code with which a script ends that has received signals; None without an error."""
    try:
        with ended_by_slurm(received):
            if failure:
                raise WorkerError(Problem("the script ended with exit code 1", code=failure))
    except WorkerError as error:
        return problem_of(error).code
    return None


@pytest.mark.parametrize("failure", [None, "exception"])
def test_script_that_slurm_ends_has_that_cause_whatever_its_exit_code(monkeypatch, failure):
    monkeypatch.setattr(script, "slurm_problem", lambda: Problem("it reached its time limit", code="timeout"))
    assert end_by([signal.SIGTERM], failure) == "timeout"
    assert end_by([], failure) == end_by([signal.SIGINT], failure) == failure
    monkeypatch.setattr(script, "slurm_problem", lambda: None)
    assert end_by([signal.SIGTERM], failure) == failure, "outside of Slurm"


def test_script_has_the_environment_of_its_user_and_the_agent(tmp_path, monkeypatch):
    for name in ("HYDRA_FULL_ERROR", "MLFLOW_HTTP_REQUEST_TIMEOUT", "SET_BY_A_LIBRARY"):  # in this process
        monkeypatch.setenv(name, "1")
    lines = f"import json, os; json.dump(dict(os.environ), open({str(tmp_path / 'environment')!r}, 'w'))"
    plan = SimpleNamespace(job=job_of(measure={"command": [sys.executable, "-c", lines]}))
    with launch.listening_socket() as listener:
        started = start_script(plan, {"socket": ""}, Mock(), listener)
        while started.receive(1.0):
            pass
        started.check_end()
        started.terminate()
    seen = json.loads((tmp_path / "environment").read_text())
    changed = {name for name in seen.keys() | ENVIRONMENT.keys() if seen.get(name) != ENVIRONMENT.get(name)}
    assert changed - {"LC_CTYPE"} == {"PYTHONPATH", "EPOCHMETER_AGENT"}  # Python itself sets LC_CTYPE
    assert seen["PYTHONPATH"].split(os.pathsep)[0] == str(script.AGENT_PATH)


def test_controller_whose_script_ended_during_its_start_ends_too(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setenv(ATTACHED, str(writer))
    plan = SimpleNamespace(job=job_of(measure={"command": ["own.py"]}))
    with launch.listening_socket() as listener:
        attached = start_script(plan, {}, Mock(), listener)
        while attached.receive(1.0):
            pass
        with pytest.raises(WorkerError, match="the script ended, but did not close its Meter"):
            attached.check_end()
        attached.terminate()
