"""How the controller handles the training process's messages."""

import json
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
from default_jobs import job_of

from epochmeter.run import event_loop
from epochmeter.run.event_loop import EventLoop, check_metered
from epochmeter.run.instruments import WindowInstruments
from epochmeter.run.window import WindowRecord
from epochmeter.shared import protocol
from epochmeter.shared.protocol import WindowClosed, WindowMeasured, WindowOpening
from epochmeter.shared.record import PROGRESS, Record


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

    plan = SimpleNamespace(record=record, job=job_of(), targets={}, run={})
    instruments = Mock(gauges=Mock(series=None), data_source=Mock(prepare=lambda epoch: []))
    EventLoop(Mock(), plan, instruments, Mock(), Mock(), Mock()).run(messages())
    assert seen == [
        {"epoch": 2, "steps": 45, "epoch_steps": 90, "parts": parts},
        {"epoch": 2, "steps": 50, "epoch_steps": 90, "parts": {}},
    ]


@pytest.mark.parametrize("has_counters", [True, False])
def test_script_learns_whether_counters_are_read_and_gets_replies_where_it_waits(tmp_path, has_counters):
    messages = [
        protocol.Built({}, {}),
        *(WindowOpening("epoch", 0, 9, is_awaited=is_awaited) for is_awaited in (True, False)),
        *(WindowClosed(1, 2, is_awaited=is_awaited) for is_awaited in (False, True)),
    ]
    job = job_of(measure={"command": ["train.py"]})
    plan = SimpleNamespace(record=Record(tmp_path), job=job, targets={}, run={"training": {}}, describe=Mock(), gpus=[])
    meter = Mock(domains={}, energy={"source": "none"})
    source = Mock(files=has_counters, prepare=lambda epoch: [])
    instruments = WindowInstruments(meter, Mock(series=None), source, Mock(), gpu_monitor=Mock())
    worker = Mock(pids=[])
    EventLoop(worker, plan, instruments, Mock(), Mock(), Mock()).run(iter(messages))
    assert worker.reply.mock_calls == [call(protocol.Proceed(has_counters)), call(), call()]


@pytest.mark.parametrize(
    ("command", "is_awaited", "is_due", "is_written"),
    [([], True, False, True), (["a"], True, False, False), (["a"], False, True, True), (["a"], True, True, True)],
    ids=["own loop", "script waits", "script does not wait", "script waits for MLflow"],
)
def test_line_has_derived_metrics_and_marks_and_is_written_unless_a_script_would_wait_for_the_disk(
    tmp_path, monkeypatch, command, is_awaited, is_due, is_written
):
    monkeypatch.setattr(event_loop, "SCRIPT_PUBLISH_S", 0.0 if is_due else 100.0)
    record, worker, lines, earlier_steps, own_pids = Record(tmp_path), Mock(), [], [], set()
    metrics = {"epoch/e2e_s": 2.0, "epoch/samples": 100, "epoch/steps": 5, "epoch/energy_j": 3.6e6}
    energy = {"opened_ns": 0, "closed_ns": 2_000_000_000, "term": {}}

    def window(opened, *others):
        earlier_steps.append(others[-1])
        line = {"window": "epoch", "epoch": opened.epoch, "metrics": metrics, "energy": energy}
        return WindowRecord(line, ["epoch 1: no file http://ann:hunter2@host/a"], {"paused": "epoch 1"})

    def messages():
        for epoch in range(4):
            yield WindowOpening("epoch", epoch, 9, epochs=4 if command else None)
            worker.pids = [epoch]
            yield WindowClosed(1, 2)
            if epoch == 1:
                yield protocol.TraceFailed("slow")
            before = len(record.windows())
            yield WindowMeasured([], [], is_awaited)
            lines.append(len(record.windows()) - before)
        yield protocol.Trained()

    job = job_of(measure={"command": command}, footprint={"price": 0.5, "currency": "EUR"}, epochs=4, warmup_epochs=1)
    facts = {"training": {"peaks": {"flop_per_s": 1e12}}, "model": {"flops_per_sample": 4e9}}
    run, flags = {**facts, "energy": {"reason": ""}, "resumed": [{"epoch": 0}]}, {}
    plan = SimpleNamespace(record=record, job=job, targets={}, run=run, set_flags=flags.update)
    instruments = Mock(gauges=Mock(series=None), data_source=Mock(prepare=lambda epoch: [f"cache {epoch}"]))
    instruments.own_processes = own_pids.update
    settings = Mock(drift_messages=lambda: ["RAPL was changed."])
    monkeypatch.setattr(event_loop, "build_window", window)
    EventLoop(worker, plan, instruments, settings, tracker := Mock(), Mock()).run(messages())
    assert tracker.flush.call_count == (4 if is_awaited and is_written else 0)
    assert lines == [is_written] * 4, "written before the next window opens"
    assert earlier_steps == [0, 5, 10, 15]
    assert own_pids == {0, 1, 2, 3}, "ranks may connect in any window"
    first, *_, last = windows = record.windows()
    derived = {"epoch/mfu": 0.2, "epoch/hfu": 0.2, "epoch/energy_per_gflop_j": 9000.0, "epoch/cost": 0.5}
    assert first["metrics"] == {**metrics, **derived}
    assert last["metrics"]["forecast/e2e_s"] == 8.0
    assert [line.get("warmup", False) for line in windows] == [True, True, False, False], "resumed, traced"
    assert first["notes"] == ["cache 0", "epoch 1: no file http://***@host/a", "RAPL was changed."]
    assert flags == first["flags"] == {"paused": "epoch 1", "setting_changed": "RAPL was changed."}
    replies = [call.args[0] for call in worker.reply.call_args_list if call.args]
    assert [reply.metrics for reply in replies] == [line["metrics"] for line in windows]


def test_script_without_a_number_of_epochs_has_no_forecast_but_the_reason(tmp_path):
    run, job = {}, job_of(measure={"command": ["a.py"]})
    plan = SimpleNamespace(
        job=job, run=run, describe=lambda **new: run.update(new), record=Record(tmp_path), targets={}
    )
    loop = EventLoop(Mock(), plan, Mock(), Mock(), Mock(), Mock())
    assert (loop._make_forecast(WindowOpening("epoch", 0, 9, epochs=2)), run) == ({}, {})
    assert loop._make_forecast(WindowOpening("epoch", 1, 9)) == {}
    assert run == {"forecast": {"reason": "the number of epochs is not known"}}


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
        plan = SimpleNamespace(run={"training": {"accelerator": "cuda:0", **training}}, gpus=gpus, job=job_of())
        refusal = pytest.raises(RuntimeError, match=f"{trained} trains, but {','.join(gpus)} is metered")
        with refusal if trained else nullcontext():
            check_metered(plan, Mock(domains={"gpu0": None}))
