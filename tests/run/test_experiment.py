"""How a run ends, whatever ends it."""

import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cases import case, cases
from default_jobs import job_of
from project import write_checkpoint

from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.console import console, run_end
from epochmeter.results.run_result import RunResult
from epochmeter.run import experiment, launch
from epochmeter.run.experiment import claimed_devices, prepared_device, run, run_first_node, start_training
from epochmeter.run.finish import finalizing
from epochmeter.run.instruments import check_idle
from epochmeter.run.nodes import Node
from epochmeter.run.record_end import resume_hint
from epochmeter.run.resolve import resolve_plan
from epochmeter.run.worker_process import worker_error
from epochmeter.shared.problem import Place, Problem, ProblemError
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.publisher import Tracker

PROCESS = "process 7 (python) also computes on gpu0: 3.0 GiB"


@pytest.fixture
def end_by(order, terminal):
    """end_by(error) -> the result and the record of a run in which that is raised."""

    def end(error=None, notes=()):
        plan, result = resolve_plan(order()), RunResult(0, [], notes=[*notes])
        plan.open_record()
        with finalizing(plan, result, Tracker(plan.record), terminal):
            if error is not None:
                raise error
        return result, plan.record

    return end


STOP, SIGNAL, DURING_STOP = KeyboardInterrupt(), SystemExit(143), RuntimeError("cannot release un-acquired lock")
DURING_STOP.__context__ = STOP


@cases(
    case(
        error=worker_error("oom", "batch=16 ran out of memory"),
        state="failed",
        code="oom",
        message="batch=16 ran out of memory",
        stop=None,
    ),
    case(
        error=worker_error("killed", "the worker was killed"),
        state="failed",
        code="killed",
        message="the worker was killed",
        stop=None,
    ),
    case(error=ValueError("batch=0"), state="failed", code="exception", message="batch=0", stop=None),
    case(
        error=OSError(28, "No space left on device"),
        state="failed",
        code="exception",
        message="[Errno 28] No space left on device",
        stop=None,
    ),
    case(error=KeyError("a bug"), state="failed", code="exception", message="KeyError: 'a bug'", stop=None),
    case(error=STOP, state="killed", code="stopped", message="stopped by Ctrl-C", stop=STOP),
    case(error=DURING_STOP, state="killed", code="stopped", message="stopped by Ctrl-C", stop=STOP),
    case(error=SIGNAL, state="killed", code="stopped", message="stopped by a signal", stop=SIGNAL),
)
def test_error_or_stop_ends_the_run_and_is_recorded(end_by, error, state, code, message, stop):
    result, record = end_by(error)
    assert (result.state, result.failure, result.stop) == (state, Problem(message, code=code), stop)
    summary = record.summary()
    assert (summary["state"], summary["failure"]) == (state, Problem(message, code=code).to_fields())
    assert not record.is_completed()


def test_completed_run_fails_if_its_summary_cannot_be_written(end_by, monkeypatch):
    monkeypatch.setattr(Record, "write_summary", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    result, record = end_by()
    assert result.state == "failed"
    assert "cannot write the run folder: No space left" in result.failure.message
    assert not record.is_completed()


def test_second_signal_waits_until_the_summary_is_written(end_by, monkeypatch):
    write = Record.write_summary

    def interrupted(record, *arguments):
        signal.raise_signal(signal.SIGTERM)
        write(record, *arguments)

    monkeypatch.setattr(Record, "write_summary", interrupted)
    result, record = end_by(notes=["epoch 1: 0.1 s", "other", "epoch 2: 0.2 s"])
    assert record.summary()["state"] == "completed"
    assert record.summary()["notes"] == ["epoch 1: 0.1 s (1 more with other numbers)", "other"]
    assert record.is_completed(record.run()["identity"])
    assert repr(result.stop) == repr(SystemExit(128 + signal.SIGTERM))


def test_run_stopped_while_publishing_is_completed_and_stays_queued(order, terminal, monkeypatch):
    request = order()
    monkeypatch.setattr(run_end, "print_run", lambda *_: signal.raise_signal(signal.SIGINT))  # once more

    def measure(plan, result, terminal, status):
        with finalizing(plan, result, Mock(close=Mock(side_effect=KeyboardInterrupt)), terminal):  # Ctrl-C
            pass

    monkeypatch.setattr(experiment, "run_first_node", measure)
    result = run(request, terminal)
    assert (result.state, result.failure) == ("completed", None)
    assert isinstance(result.stop, KeyboardInterrupt)
    assert Record(request.folder).is_completed()
    assert [record.folder for record in queue.pending_runs(request.folder.parents[1])] == [request.folder]


def test_interrupted_run_has_a_hint_to_resume(order):
    for of_sweep, is_submitted in ((True, False), (False, False), (False, True)):
        plan = resolve_plan(order(of_sweep=of_sweep))
        if is_submitted:
            SubmissionLog(plan.record.folder.parent).write({})
        write_checkpoint(plan.record, plan.run.record_id, epochs=2)
        command = "again" if of_sweep or is_submitted else "with `sweep.resume=true`"
        assert resume_hint(plan) == [f"a checkpoint after epoch 2 is kept: run the same command {command} to resume"]


def test_settings_of_a_killed_run_are_restored_again_once_the_devices_are_locked(order, terminal, monkeypatch):
    plan, result, calls = resolve_plan(order()), RunResult(0, []), []
    plan.used_gpus.append({"vendor": "nvidia", "uuid": "GPU-aaaa"})
    lost = [
        SimpleNamespace(knob=knob, original="80", devices=devices)
        for knob, devices in (("fan", []), ("NVML", ["GPU-aaaa", "GPU-cccc"]), ("amdgpu", ["GPU-bbbb"]))
    ]
    monkeypatch.setattr(experiment, "restore_after_kill", lambda journal, say, tried: [*tried, *lost])
    monkeypatch.setattr(experiment, "refuse_unrestored", lambda knobs, journal: calls.append("refuse"))
    monkeypatch.setattr(experiment.device_lock, "lock_devices", lambda *_: nullcontext(calls.append("lock")))
    with claimed_devices(plan, [], result, terminal):
        calls.append("run")
    assert calls == ["lock", "refuse", "run"]
    assert result.notes == [f"{knob} could not be restored to its original 80." for knob in ("fan", "NVML")]


@pytest.mark.parametrize("is_meter", [False, True])
def test_wait_for_a_device_has_a_hint_for_scripts_that_wait_for_each_other(order, terminal, monkeypatch, is_meter):
    plan = resolve_plan(order())

    def lock(devices, folder, holder, say):
        say("Waiting for cpu, in use by pid 7.")
        return nullcontext()

    monkeypatch.setattr(experiment.device_lock, "lock_devices", lock)
    if is_meter:
        monkeypatch.setenv(experiment.ATTACHED, "3")
    with claimed_devices(plan, [], RunResult(0, []), terminal):
        printed = terminal.console.file.getvalue()
    assert "Waiting for cpu, in use by pid 7." in printed
    assert ('Meter("measure.lock=false")' in printed) == is_meter


@pytest.mark.parametrize(("meter", "is_announced"), [("rapl", True), ("none", False)])
def test_missing_energy_is_announced_before_training(order, terminal, meter, is_announced, monkeypatch):
    monkeypatch.setattr(console, "_already_printed", set())
    plan = resolve_plan(order("dataset=tensors", "device=cpu", f"meter={meter}"))
    plan.open_record()
    with prepared_device(plan, RunResult(0, []), terminal):
        printed = " ".join(terminal.console.file.getvalue().split())
    assert ("Energy will not be measured: No RAPL energy counter" in printed) == is_announced


@pytest.mark.parametrize("is_attached", [False, True])
def test_process_that_runs_already_is_the_runs_own_from_the_first_reading_on(order, terminal, monkeypatch, is_attached):
    plan = resolve_plan(order("dataset=tensors", "device=cpu", "meter=none"))
    plan.open_record()
    if is_attached:
        monkeypatch.setenv(experiment.ATTACHED, "3")
    else:
        plan.job = replace(plan.job, measure=replace(plan.job.measure, pid=os.getpid()))
    with prepared_device(plan, RunResult(0, []), terminal) as (_, instruments):
        own = [part.own_pids for part in (instruments.gpu_monitor, instruments.cpu_load, instruments.memory)]
    process = os.getppid() if is_attached else os.getpid()
    assert all(process in pids for pids in own)


def test_what_is_refused_is_refused_before_a_process_starts(order, terminal, monkeypatch):
    plan, result, start = resolve_plan(order("dataset=tensors", "meter=none")), RunResult(0, []), Mock()
    plan.open_record()
    refusal = Problem("power_limit=auto: energy is not measured", code="job")
    monkeypatch.setattr(experiment, "Recording", Mock(side_effect=ProblemError(refusal)))
    monkeypatch.setattr(experiment, "started_process", start)
    run_first_node(plan, result, terminal)
    assert result.failure == refusal
    start.assert_not_called()


def test_refused_run_is_a_failure_and_leaves_no_folder(order, terminal):
    request = order("batch=0")
    result = run(request, terminal)
    assert (result.state, result.failure.code) == ("failed", "job")
    assert "`batch=0` is not valid" in result.failure.message
    assert result.failure.where == Place(key="batch")
    assert not request.folder.exists()


def test_only_the_first_node_whose_rank_reports_progress_has_a_limit_of_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "launched", lambda *arguments: arguments[-2:])
    job = job_of(sweep={"timeout_s": 60, "hung_after_s": 1800})
    plan = SimpleNamespace(job=job, record=Record(tmp_path), gpus=[], ranks=2)
    for number, silence_s in ((0, 1800), (1, None)):
        plan.node = Node(number=number, nodes=2)
        assert start_training(plan) == (60, silence_s)


@cases(
    case(
        load=0.23,
        devices=["gpu-0000:01:00.0"],
        listed=[],
        shared="another process uses the GPU: the GPU was 23 % busy before training began",
    ),
    case(load=0.23, devices=["gpu-0000:01:00.0"], listed=[PROCESS], shared=PROCESS),
    case(load=None, devices=["gpu-0000:01:00.0"], listed=[PROCESS], shared=PROCESS),
    case(load=0.09, devices=["gpu"], listed=[], shared=""),
    case(load=0.9, devices=["cpu"], listed=[], shared=""),
    case(load=None, devices=["gpu"], listed=[], shared=""),
)
def test_another_process_on_the_gpu_before_training_sets_a_flag(terminal, load, devices, listed, shared):
    flags, result = {}, RunResult(0, [])
    gauges = Mock(window=lambda *_: {} if load is None else {"gpu_utilization": load})
    instruments = Mock(gauges=gauges, other_gpu_processes=lambda: listed)
    check_idle(SimpleNamespace(devices=devices, set_flags=flags.update), instruments, 0, result, terminal)
    assert flags.get("gpu_shared", "") == shared
    assert result.notes == ([f"{shared}."] if shared else [])
