"""How a run ends, whatever ends it."""

import io
import json
import signal
import zipfile
from types import SimpleNamespace

import pytest
from controls import Board
from default_jobs import job_of
from rich.console import Console

from epochmeter.console.console import Terminal
from epochmeter.power.knobs import privilege
from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.results.run_result import RunResult
from epochmeter.run import cooldown, experiment, launch, plan
from epochmeter.run.cooldown import Cooldown
from epochmeter.run.experiment import check_idle, cool_down, run, start_training
from epochmeter.run.finish import dedupe_notes, finalizing, resume_hint
from epochmeter.run.nodes import Node
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_METADATA, Record
from epochmeter.sweep.progress import SINGLE_RUN, SweepProgress
from epochmeter.sweep.sweep_folder import SUBMISSIONS_FILE, Points
from epochmeter.tracking import queue
from epochmeter.tracking.publisher import NullTracker
from train import is_last


@pytest.fixture
def terminal():
    terminal = Terminal()
    terminal.console = Console(file=io.StringIO(), width=80, highlight=False)
    return terminal


@pytest.fixture
def ended(order, terminal):
    """ended(error) -> the outcome and the record of a run in which that is raised."""

    def by(error=None):
        the, outcome = plan.resolve_plan(order()), RunResult(0, [])
        the.open_record()
        with finalizing(the, outcome, NullTracker(the.record), terminal):
            if error is not None:
                raise error
        return outcome, the.record

    return by


def test_a_run_that_nothing_disturbs_is_completed(ended):
    outcome, record = ended()
    assert (outcome.state, outcome.failure, outcome.stop) == ("completed", None, None)
    assert record.is_completed(record.run()["identity"])
    assert record.summary()["failure"] is None


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (WorkerError("oom", "batch=16 ran out of memory"), "oom", "batch=16 ran out of memory. Reduce the batch size."),
        (WorkerError("killed", "the worker was killed"), "killed", "the worker was killed"),
        (ValueError("batch=0"), "exception", "batch=0"),
        (OSError(28, "No space left on device"), "exception", "[Errno 28] No space left on device"),
        (KeyError("a fault of ours"), "exception", "KeyError: 'a fault of ours'"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_fails_its_run_alone_and_the_record_tells_why(ended, error, kind, message):
    outcome, record = ended(error)
    assert (outcome.state, outcome.kind, outcome.failure, outcome.stop) == ("failed", kind, message, None)
    assert record.summary()["state"] == "failed"
    assert record.summary()["failure"] == {"kind": kind, "message": message}
    assert not record.is_completed()


@pytest.mark.parametrize(
    ("stop", "message"), [(KeyboardInterrupt(), "stopped by Ctrl-C"), (SystemExit(143), "stopped by a signal")]
)
def test_a_stop_marks_the_run_as_killed_and_is_handed_to_the_caller(ended, stop, message):
    outcome, record = ended(stop)
    assert (outcome.state, outcome.failure, outcome.stop) == ("killed", message, stop)
    assert record.summary()["state"] == "killed"
    assert record.summary()["failure"] == {"kind": "stopped", "message": message}


def test_an_error_that_a_stop_meets_on_its_way_out_does_not_hide_it(ended):
    stop, error = SystemExit(143), RuntimeError("cannot release un-acquired lock")
    error.__context__ = stop
    outcome, record = ended(error)
    assert (outcome.state, outcome.stop) == ("killed", stop)
    assert record.summary()["failure"] == {"kind": "stopped", "message": "stopped by a signal"}


def test_a_record_that_cannot_be_concluded_fails_a_run_that_was_completed(ended, monkeypatch):
    monkeypatch.setattr(
        "epochmeter.shared.record.Record.write_summary", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    outcome, record = ended()
    assert outcome.state == "failed"
    assert "cannot write the run folder: [Errno 28] No space left" in outcome.failure
    assert not record.is_completed()


def test_what_is_said_twice_in_a_run_is_noted_once(order, terminal):
    the, outcome = plan.resolve_plan(order()), RunResult(0, [], notes=["same", "other", "same"])
    the.open_record()
    with finalizing(the, outcome, NullTracker(the.record), terminal):
        pass
    assert the.record.summary()["notes"] == ["same", "other"]


def test_each_run_that_begins_too_hot_says_so(order, terminal, monkeypatch):
    hot = "it began at 70 C, after 600 s of waiting for less than sweep.cool_below_c=50: raise that, or another."
    monkeypatch.setattr(experiment, "open_gauges", lambda **_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(cooldown, "wait_until_cool", lambda *_: Cooldown(600.0, 70.0, notes=[hot]))
    the = plan.resolve_plan(order("sweep.cool_below_c=50"))
    first, second = RunResult(0, []), RunResult(1, [])
    cool_down(the, first, terminal, SINGLE_RUN)
    cool_down(the, second, terminal, SweepProgress(outcomes=[first]))
    assert first.notes == second.notes == [hot]


@pytest.mark.parametrize(
    ("of_sweep", "sent", "how"),
    [
        (True, False, "run the same command again to resume"),
        (False, False, "run the same command with `sweep.resume=true` to resume"),
        (False, True, "run the same command again to resume"),  # that of who sent it to this node
    ],
)
def test_a_run_that_left_a_checkpoint_says_by_which_command_it_goes_on(order, of_sweep, sent, how):
    the = plan.resolve_plan(order(of_sweep=of_sweep))
    if sent:
        (the.record.folder.parent / SUBMISSIONS_FILE).parent.mkdir()
        (the.record.folder.parent / SUBMISSIONS_FILE).write_text("{}")
    with zipfile.ZipFile(the.record.folder / CHECKPOINT, "w") as archive:
        archive.writestr(CHECKPOINT_METADATA, json.dumps({"record_id": the.run["record_id"], "epochs": 2}))
    assert resume_hint(the) == [f"a checkpoint after 2 epochs is kept: {how}"]


def test_a_job_that_is_refused_is_an_outcome_and_leaves_no_folder(order, terminal):
    refused = order("batch=0")
    outcome = run(refused, terminal)
    assert (outcome.state, outcome.kind, outcome.failure) == (
        "failed",
        "job",
        "`batch=0` is not valid\n  hint: give a whole number, 1 or more, at most 1,000,000,000",
    )
    assert not refused.folder.exists()


def test_a_second_signal_while_the_end_is_written_waits_for_it(ended, monkeypatch):
    write = Record.write_summary

    def interrupted(record, *how):
        signal.raise_signal(signal.SIGTERM)
        write(record, *how)

    monkeypatch.setattr(Record, "write_summary", interrupted)
    outcome, record = ended()
    assert record.summary()["state"] == "completed"
    assert isinstance(outcome.stop, SystemExit)
    assert outcome.stop.code == 128 + signal.SIGTERM


class StoppedPublisher(NullTracker):
    """A publisher during whose last call Ctrl-C is pressed."""

    def close(self, limit_s=30.0, ended=None):
        raise KeyboardInterrupt


def test_run_that_is_stopped_while_it_is_published_is_completed_and_waits_to_be_published(order, terminal, monkeypatch):
    the = order()
    monkeypatch.setattr(Terminal, "run_finished", lambda *told: signal.raise_signal(signal.SIGINT))  # and once more

    def measure(plan, outcome, terminal, course):
        with finalizing(plan, outcome, StoppedPublisher(plan.record), terminal):
            pass

    monkeypatch.setattr(experiment, "run_first_node", measure)
    outcome = run(the, terminal)
    assert (outcome.state, outcome.failure) == ("completed", None)
    assert isinstance(outcome.stop, KeyboardInterrupt)
    assert Record(the.folder).is_completed()
    multirun = the.folder.parents[1]
    assert [record.folder for record in queue.pending_runs(multirun)] == [the.folder]


@pytest.mark.parametrize(
    ("of_sweep", "points", "ended", "expected"),
    [(False, 0, 1, True), (True, 3, 1, False), (True, 3, 3, True), (True, 0, 3, False)],
    ids=["single run", "first of a sweep", "last of a sweep", "search"],
)
def test_completed_run_ends_a_stopped_command_well_only_if_it_is_the_last(of_sweep, points, ended, expected):
    course = SweepProgress(Points([["batch=8"]] * points), [RunResult(number, []) for number in range(ended)])
    assert is_last(SimpleNamespace(of_sweep=of_sweep), course) == expected


def test_notes_that_are_alike_but_for_their_numbers_are_told_once():
    notes = [f"val window {epoch}: 0.0{epoch} s is too short." for epoch in range(3)]
    assert dedupe_notes([*notes, "no trace"]) == ["val window 0: 0.00 s is too short. (2 more)", "no trace"]


@pytest.mark.parametrize(("number", "silence_s"), [(0, 1800), (1, None)])
def test_ranks_of_another_node_may_be_silent_for_as_long_as_an_epoch_takes(tmp_path, monkeypatch, number, silence_s):
    """The first rank alone tells of its steps."""
    monkeypatch.setattr(launch, "launched", lambda *asked: asked[-2:])
    job = job_of(sweep={"timeout_s": 60, "hung_after_s": 1800})
    planned = SimpleNamespace(job=job, record=Record(tmp_path), gpus=[], ranks=2, node=Node(number=number, nodes=2))
    assert start_training(planned) == (60, silence_s)


PROCESS = "process 7 (python) also computes on gpu0: 3.0 GiB, 45% utilization"


@pytest.mark.parametrize(
    ("load", "devices", "listed", "shared"),
    [
        (0.23, ["gpu-0000:01:00.0"], [], "another process uses the GPU: the GPU was 23% busy before training began"),
        (0.23, ["gpu-0000:01:00.0"], [PROCESS], PROCESS),
        (None, ["gpu-0000:01:00.0"], [PROCESS], PROCESS),
        (0.09, ["gpu"], [], ""),
        (0.9, ["cpu"], [], ""),
        (None, ["gpu"], [], ""),
    ],
)
def test_another_process_on_the_gpu_before_training_is_warned_of(terminal, load, devices, listed, shared):
    flags, outcome = {}, RunResult(0, [])
    panel = SimpleNamespace(
        gauges=SimpleNamespace(window=lambda *_: {} if load is None else {"gpu_utilization": load}),
        gpu_monitor=SimpleNamespace(poll=lambda: None, drain=lambda: listed),
    )
    check_idle(SimpleNamespace(devices=devices, set_flags=flags.update), panel, 0, outcome, terminal)
    assert flags.get("gpu_shared", "") == shared
    assert outcome.notes == ([f"{shared}."] if shared else [])


LIMIT = "sys/class/powercap/intel-rapl:0/constraint_1_power_limit_uw"


@pytest.fixture
def limited(order, terminal, tmp_path, monkeypatch):
    """limited("power_limit=65") -> the outcome of a run on a PC whose CPU has a limit; it trains nothing."""
    board = Board(tmp_path / "pc").with_rapl(packages=1)
    monkeypatch.setattr(launch, "check_interpreter", lambda python: None)

    def sets(plan, outcome, terminal, course):
        with AppliedSettings(list(plan.targets.values()), plan.journal, terminal.warn) as holding:
            plan.applied(holding.applied)

    monkeypatch.setattr(experiment, "run_first_node", sets)

    def of(*typed):
        places = (f"machine.{place}={tmp_path / place}" for place in ("lock_dir", "state_dir"))
        return run(order(*places, "device=cpu", *typed), terminal)

    of.board, of.journal = board, lambda: list((tmp_path / "state_dir").rglob("*.json"))
    return of


def test_a_limit_that_may_not_be_set_fails_only_its_own_run(limited, monkeypatch):
    def refused(file, text):
        raise RuntimeError("the kernel refused to write 65000000")

    with monkeypatch.context() as change:
        change.setattr(privilege, "write_file", refused)
        outcome = limited("power_limit=65")
    assert (outcome.state, outcome.failure) == ("failed", "the kernel refused to write 65000000")
    assert limited.journal() == []
    assert (limited().state, limited("power_limit=65").state) == ("completed", "completed")
    assert limited.board.read(LIMIT) == "95000000"


def test_a_limit_that_is_switched_off_is_refused_before_anything_is_written(limited, tmp_path):
    limited.board.put(**{"sys/class/powercap/intel-rapl:0/enabled": 0})
    outcome = limited("power_limit=65")
    assert outcome.state == "failed"
    assert "hint: echo 1 | sudo tee" in outcome.failure
    assert not (tmp_path / "lock_dir").exists()
    assert limited.journal() == []
    assert limited().state == "completed"


def test_a_setting_that_cannot_be_restored_refuses_the_runs_that_change_it_and_no_others(limited, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(AppliedSettings, "restore_all", lambda holding: [])
        assert limited("power_limit=65").state == "completed"
    assert limited.board.read(LIMIT) == "65000000"
    with monkeypatch.context() as change:
        change.setattr(privilege, "write_file", lambda file, text: (_ for _ in ()).throw(RuntimeError("no right to")))
        free, wants = limited(), limited("power_limit=50")
    (entry,) = limited.journal()
    assert (free.state, free.notes) == ("completed", ["RAPL could not be restored to its original 95 W."])
    assert wants.state == "failed"
    assert wants.failure.endswith(f"95 W\nhint: echo 95000000 | sudo tee {limited.board.root / LIMIT} && rm {entry}")
    assert limited("power_limit=50").state == "completed"
    assert (limited.board.read(LIMIT), limited.journal()) == ("95000000", [])


@pytest.mark.parametrize("device", ["cpu", "nano"])
def test_an_interpreter_without_torch_is_refused_before_the_lock_the_dataset_and_idle_power(
    order, terminal, tmp_path, monkeypatch, device
):
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho \'{"python": [3, 6], "torch": null}\'\n')
    python.chmod(0o755)
    if device == "nano":
        Board(tmp_path / "pc").put(**{"proc/device-tree/compatible": "nvidia,p3450-0000\0nvidia,tegra210"})
    monkeypatch.setattr(experiment, "run_first_node", lambda *_: pytest.fail("measured"))
    asked = order(f"device={device}", f"device.python={python}", f"machine.lock_dir={tmp_path / 'locks'}")
    outcome = run(asked, terminal)
    assert outcome.state == "failed"
    assert outcome.failure.startswith(f"{python} has no torch\n  hint: install torch for it (on a Jetson NVIDIA's")
    assert not (tmp_path / "locks").exists()
    assert not asked.folder.exists()
    assert "REHEARSAL" not in terminal.console.file.getvalue()
