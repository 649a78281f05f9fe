"""How the controller handles the training process's messages."""

import json
import time
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from default_jobs import job_of
from metadata import run_info
from power.conftest import counters

from epochmeter.machine.cpu_load import CpuUse
from epochmeter.power.meter import NullMeter
from epochmeter.power.window_energy import Reading
from epochmeter.run import recording, settling
from epochmeter.run.event_loop import EventLoop
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.recording import Recording, check_metered
from epochmeter.run.settling import settling_note
from epochmeter.run.window_record import WindowRecord
from epochmeter.shared import protocol
from epochmeter.shared.protocol import Progress, WindowClosed, WindowMeasured, WindowOpening
from epochmeter.shared.record import PROGRESS, Record


def loop(plan, instruments, settings=None, worker=None, tracker=None):
    recording = Recording(plan, instruments, settings or Mock(drift_messages=list), Mock())
    return EventLoop(worker or Mock(), plan, instruments, recording, tracker or Mock(), Mock())


def test_progress_of_an_epoch_is_recorded_until_the_epoch_ends(tmp_path):
    record, parts, seen = Record(tmp_path), {"copy_s": 0.5}, []

    def messages():
        yield WindowOpening("epoch", 2, 90)
        yield protocol.Progress(45, None, parts)
        yield protocol.Progress(50)
        seen.extend(map(json.loads, (tmp_path / PROGRESS).read_text().splitlines()))
        yield WindowClosed(1, 2)
        assert not (tmp_path / PROGRESS).exists()
        yield WindowOpening("val", 2, 9)
        yield protocol.Progress(5, None, parts)
        assert not (tmp_path / PROGRESS).exists()

    plan = SimpleNamespace(record=record, job=job_of(), targets={}, run=run_info())
    instruments = Mock(gauges=Mock(series=None), data_source=Mock(prepare=lambda epoch: []))
    loop(plan, instruments).run(messages())
    assert seen == [
        {"epoch": 2, "steps": 45, "epoch_steps": 90, "parts": parts},
        {"epoch": 2, "steps": 50, "epoch_steps": 90, "parts": {}},
    ]


def test_line_has_derived_metrics_and_is_published_before_the_next_window(tmp_path, monkeypatch):
    record, worker, lines, earlier_steps, own_pids = Record(tmp_path), Mock(), [], [], set()
    metrics = {"epoch/e2e_s": 2.0, "epoch/samples": 100, "epoch/steps": 5, "epoch/energy_j": 3.6e6}
    energy = {"opened_ns": 0, "closed_ns": 2_000_000_000, "term": {}}

    def window(opened, *others, **_):
        earlier_steps.append(others[-1])
        line = {"window": "epoch", "epoch": opened.epoch, "metrics": metrics, "energy": energy}
        return WindowRecord(line, ["epoch 1: no file http://ann:hunter2@host/a"], {"paused": "epoch 1"})

    def messages():
        for epoch in range(4):
            yield WindowOpening("epoch", epoch, 9)
            worker.pids = [epoch]
            yield WindowClosed(1, 2)
            before = len(record.windows())
            yield WindowMeasured([], [])
            lines.append(len(record.windows()) - before)
        yield protocol.Trained()

    job = job_of(footprint={"price": 0.5, "currency": "EUR"}, epochs=4, warmup_epochs=1)
    facts = {"training": {"peaks": {"flop_per_s": 1e12}}, "model": {"flops_per_sample": 4e9}}
    run, flags = run_info(**facts, resumed=[{"epoch": 0}]), {}
    plan = SimpleNamespace(record=record, job=job, targets={}, run=run, set_flags=flags.update)
    instruments = Mock(gauges=Mock(series=None), data_source=Mock(prepare=lambda epoch: [f"cache {epoch}"]))
    instruments.own_processes = own_pids.update
    settings = Mock(drift_messages=lambda: ["RAPL was changed."])
    monkeypatch.setattr(recording, "build_window", window)
    loop(plan, instruments, settings, worker, tracker := Mock()).run(messages())
    assert tracker.follow.call_count == 4
    assert lines == [1] * 4
    assert earlier_steps == [0, 5, 10, 15]
    assert own_pids == {0, 1, 2, 3}, "ranks may connect in any window"
    first, *_, last = windows = record.windows()
    derived = {"epoch/mfu": 0.2, "epoch/hfu": 0.2, "epoch/energy_per_gflop_j": 9000.0, "epoch/cost": 0.5}
    assert first["metrics"] == {**metrics, **derived}
    assert last["metrics"]["forecast/e2e_s"] == 8.0
    assert [line.get("warmup", False) for line in windows] == [True, False, False, False], "resumed"
    assert first["notes"] == ["cache 0", "epoch 1: no file http://***@host/a", "RAPL was changed."]
    assert flags == first["flags"] == {"paused": "epoch 1", "setting_changed": "RAPL was changed."}
    replies = [call.args[0] for call in worker.reply.call_args_list if call.args]
    assert [reply.metrics for reply in replies] == [line["metrics"] for line in windows]


@pytest.mark.parametrize(
    ("evaluate", "stop", "published"), [(False, False, [1, 1, 0]), (True, False, [1] * 5 + [0]), (True, True, [1, 0])]
)
def test_a_window_is_published_unless_the_end_of_the_run_follows(tmp_path, monkeypatch, evaluate, stop, published):
    energy, counts, tracker = {"opened_ns": 0, "closed_ns": 1, "term": {}}, [], Mock()

    def window(opened, *_, **keywords):
        return WindowRecord({"window": opened.window, "epoch": opened.epoch, "metrics": {}, "energy": energy}, [], {})

    def messages():
        for epoch in range(1 if stop else 3):
            for kind in ("epoch", "val") if evaluate else ("epoch",):
                before = tracker.follow.call_count
                yield WindowOpening(kind, epoch, 9)
                yield WindowClosed(1, 2)
                yield WindowMeasured([], [])
                counts.append(tracker.follow.call_count - before)
        yield protocol.Trained()

    monkeypatch.setattr(recording, "build_window", window)
    monkeypatch.setattr(recording, "no_forecast_reason", lambda *_: "not needed here")
    monkeypatch.setattr(recording.Recording, "has_reached_budget", stop)
    job, functions = job_of(epochs=3, evaluate=evaluate), {"describe": Mock(), "set_flags": Mock()}
    plan = SimpleNamespace(record=Record(tmp_path), job=job, targets={}, run=run_info(), **functions)
    instruments = Mock(gauges=Mock(series=None), data_source=Mock(prepare=lambda epoch: []))
    loop(plan, instruments, tracker=tracker).run(messages())
    assert counts == published


def test_epochs_after_the_last_of_two_resumptions_are_warm_up_again(tmp_path, monkeypatch):
    """They start with cold caches, and would else be part of the steady means."""

    def window(opened, *_, **keywords):
        energy = {"opened_ns": 0, "closed_ns": 1, "term": {}}
        return WindowRecord({"window": opened.window, "epoch": opened.epoch, "metrics": {}, "energy": energy}, [], {})

    monkeypatch.setattr(recording, "build_window", window)
    run = run_info(resumed=[{"epoch": 2}, {"epoch": 5}])
    plan = SimpleNamespace(record=Record(tmp_path), job=job_of(warmup_epochs=2), targets={}, run=run)
    made = Recording(plan, Mock(), Mock(drift_messages=list), Mock())
    marks = {}
    for kind, epoch in (("val", 4), ("epoch", 5), ("val", 5), ("epoch", 6), ("epoch", 7), ("epoch", 8)):
        made.add(WindowOpening(kind, epoch, 9), WindowMeasured([], []), None, None)
        marks[kind, epoch] = made._unsaved.get("warmup", False)
    assert [*marks.values()] == [False, True, False, True, False, False]


@pytest.mark.parametrize(
    ("boottime_s", "suspended_s"), [(None, [None] * 3), (105, [None, 3.5, 3.5]), (100, [5.0, 8.5, 8.5])]
)
def test_windows_have_the_suspensions_of_the_machine_since_their_clock(tmp_path, monkeypatch, boottime_s, suspended_s):
    """It was suspended for 5 s before the first window, and for 3.5 s before the second."""
    energy = {"opened_ns": 0, "closed_ns": 1, "term": {}}
    monkeypatch.setattr(
        recording, "build_window",
        lambda opened, *_, **keywords: WindowRecord(
            {"window": opened.window, "epoch": opened.epoch, "metrics": {}, "energy": energy}, [], {}
        ),
    )  # fmt: skip
    clock = {"wall_s": 1e9, "monotonic_ns": 100 * 10**9, "boottime_ns": boottime_s and boottime_s * 10**9}
    plan = SimpleNamespace(record=Record(tmp_path), job=job_of(), targets={}, run=run_info(clock=clock))
    made = Recording(plan, Mock(), Mock(drift_messages=list), Mock())
    found = []
    for epoch, after_s in enumerate((5.04, 8.5, 8.5)):
        made.add(WindowOpening("epoch", epoch, 9), WindowMeasured([], []), None, Reading(0, {}, suspended_s=after_s))
        found.append(made.last.get("suspended_s"))
    assert found == [pytest.approx(value, abs=0.05) if value else None for value in suspended_s]


@pytest.mark.parametrize(
    ("drift_w", "marks", "is_settled"), [(0.0, [True, True, False, False], True), (9.0, [True] * 4, False)]
)
def test_epochs_are_warm_up_until_the_device_has_settled(tmp_path, monkeypatch, drift_w, marks, is_settled):
    """Epochs of 8 s, in which a piece takes 3 s; the last one ends before the longest duration."""
    now = SimpleNamespace(s=100.0, j=0.0)
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic_ns=lambda: round(now.s * 1e9)))
    energy = {"opened_ns": 0, "closed_ns": 1, "term": {}}
    line = {"window": "epoch", "metrics": {"epoch/e2e_s": 8.0}, "energy": energy}
    monkeypatch.setattr(
        recording, "build_window", lambda opened, *_, **keywords: WindowRecord({**line, "epoch": opened.epoch}, [], {})
    )
    job = job_of(warmup_epochs=0, sweep={"settle": True, "settle_s": 60})
    plan = SimpleNamespace(record=Record(tmp_path), job=job, targets={}, run=run_info(), describe=lambda: None)
    instruments = Mock(meter=counters(gpu0=float))
    instruments.gauges.current_value = lambda name: 1.4e9
    made = Recording(plan, instruments, Mock(drift_messages=list), Mock())

    def read():
        return Reading(round(now.s * 1e9), {"gpu0": now.j})

    found = []
    for epoch in range(4):
        opened = WindowOpening("epoch", epoch, 8)
        made.open_window(opened, read())
        for step in range(1, 9):
            now.s, now.j = now.s + 1, now.j + 200 + drift_w * (now.s - 100)
            made.progress(opened, Progress(step), read)
        made.add(opened, WindowMeasured([], []), read(), read())
        found.append(made._unsaved.get("warmup", False))
    assert found == marks
    assert plan.run.settling["is_settled"] == is_settled
    assert bool(settling_note(plan.run.settling, has_mean=True)) != is_settled
    (note,) = settling_note(plan.run.settling, has_mean=False)
    assert ("no epoch began after that" in note) == is_settled
    assert settling_note({}, has_mean=False) == []


@pytest.mark.parametrize(("evaluate", "stops"), [(True, "epoch val epoch val"), (False, "epoch epoch")])
def test_training_is_told_to_end_at_a_budget_after_the_evaluation_of_its_epoch(tmp_path, monkeypatch, evaluate, stops):
    """Four epochs of 10 s, with evaluations of 0 s, have a budget of 25 s."""

    def window(opened, *_, **keywords):
        seconds = 10.0 if opened.window == "epoch" else 0.0
        energy = {"opened_ns": 0, "closed_ns": 1, "term": {}}
        metrics = {f"{opened.window}/e2e_s": seconds, f"{opened.window}/steps": 0}
        return WindowRecord(
            {"window": opened.window, "epoch": opened.epoch, "metrics": metrics, "energy": energy}, [], {}
        )

    monkeypatch.setattr(recording, "build_window", window)
    run, job = run_info(), job_of(budget={"time_s": 25}, epochs=4, evaluate=evaluate, warmup_epochs=1)
    plan = SimpleNamespace(record=Record(tmp_path), job=job, targets={}, run=run, describe=lambda: None)
    made, kinds = Recording(plan, Mock(), Mock(drift_messages=list), Mock()), ("epoch", "val")[: 1 + evaluate]
    ended, windows = False, iter((kind, epoch) for epoch in range(4) for kind in kinds)
    measured = []
    while not ended:
        kind, epoch = next(windows)
        measured.append(kind)
        ended = made.add(WindowOpening(kind, epoch, 9), WindowMeasured([], []), None, None).stop
    assert " ".join(measured) == stops
    assert run.budget == {"key": "time_s", "limit": 25, "used": 20.0, "expected": 30.0, "epochs": 2}


def test_script_without_a_number_of_epochs_has_no_forecast_but_the_reason(tmp_path):
    run, job = run_info(), job_of(measure={"command": ["a.py"]})
    plan = SimpleNamespace(job=job, run=run, describe=lambda: None, record=Record(tmp_path), targets={})
    made = Recording(plan, Mock(), Mock(), terminal := Mock())
    made.forecast(WindowOpening("epoch", 0, 9, epochs=2))
    assert run.forecast is None
    made.forecast(WindowOpening("epoch", 1, 9))
    assert [call.args[0] for call in terminal.forecast.call_args_list] == [{}, {}]
    assert run.forecast == {"reason": "the number of epochs is not known"}


def test_metered_gpus_must_be_those_that_train():
    for training, metered, trained in (
        ({"gpu": {"uuid": "1234"}}, "1234", None),
        ({"gpu": {}}, "1234", None),
        ({"gpu": {"uuid": "5678"}}, "1234", "GPU-5678"),
        ({"accelerator": "cpu", "torch": "2.15.0"}, "1234", "the CPU"),
        ({"gpus": ["1234", "5678"]}, "1234,5678", None),
        ({"gpus": [None, None]}, "1234,5678", None),
        ({"gpus": ["1234", "9999"], "gpus_here": ["1234"]}, "1234", None),
        ({"gpus": ["1234", "9999"]}, "1234,5678", "GPU-1234,GPU-9999"),
        ({"gpus": ["1234", "1234"]}, "1234,5678", "GPU-1234"),
    ):
        gpus = [f"GPU-{uuid}" for uuid in metered.split(",")]
        plan = SimpleNamespace(run=run_info(training={"accelerator": "cuda:0", **training}), gpus=gpus, job=job_of())
        refusal = pytest.raises(RuntimeError, match=f"{trained} trains, but {','.join(gpus)} is metered")
        with refusal if trained else nullcontext():
            check_metered(plan, Mock(domains={"gpu0": None}))


@pytest.mark.parametrize("command", [None, ["train.py"]])
def test_hint_for_gpus_that_are_not_metered_names_no_key_that_a_script_lacks(command):
    job = job_of(measure={"command": command})
    plan = SimpleNamespace(run=run_info(training={"accelerator": "cuda:0", "gpus": ["5678"]}), gpus=["GPU-12"], job=job)
    with pytest.raises(RuntimeError) as refusal:
        check_metered(plan, Mock(domains={"gpu0": None}))
    (problem,) = refusal.value.problems
    assert ("strategy.ranks" in problem.hint, "--nproc_per_node" in problem.hint) == (not command, bool(command))


def test_measurement_of_peaks_is_disturbed_by_other_processes_between_its_borders():
    """A GPU is shared at one of the first two borders; other processes use the processor between the last two."""
    marks_ns, lists, own_pids, replies = [], iter([["process 8"], []]), set(), []

    def window(opened_ns, closed_ns):
        assert marks_ns[-2] <= opened_ns <= marks_ns[-1] <= closed_ns <= time.monotonic_ns()
        return CpuUse(0.4, is_contended=len(marks_ns) == 3)

    load = Mock(mark=lambda: marks_ns.append(time.monotonic_ns()), window=window)
    monitor = Mock(drain=lambda: next(lists))
    instruments = WindowInstruments(NullMeter("none"), Mock(series=None), Mock(), load, gpu_monitor=monitor)
    monitor.own_pids = load.own_pids = own_pids
    plan = SimpleNamespace(record=Mock(windows=list), job=job_of(), targets={}, run=run_info())
    worker = Mock(pids=[41, 42], reply=replies.append)
    loop(plan, instruments, worker=worker).run(protocol.PeaksBorder() for _ in range(3))
    assert [reply.text for reply in replies] == ["", "process 8", CpuUse(0.4, is_contended=True).note]
    assert own_pids == {41, 42}
