"""How the controller handles the training process's messages."""

import json
from array import array
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from default_jobs import job_of

from epochmeter.power.meter import Domain, Instrument, Meter
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.uncertainty import Response
from epochmeter.results.forecast import Forecaster
from epochmeter.run.event_loop import (
    check_metered,
    finish_trace,
    make_forecast,
    notes_and_flags,
    run_event_loop,
    traced_power,
)
from epochmeter.run.window import Window
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.protocol import Progress, Traced, TraceFailed, WindowClosed, WindowOpening
from epochmeter.shared.record import PROGRESS, Record


def test_line_has_notes_and_flags_without_secrets():
    window = Window({}, ["epoch 3: gpu0 slowed for heat"], {"throttled": "gpu0 slowed for heat"})
    remarks = notes_and_flags(window, ["no such file: http://ann:hunter2@host/a.png"], ["RAPL was changed."])
    assert remarks["notes"][1:] == ["epoch 3: gpu0 slowed for heat", "RAPL was changed."]
    assert "hunter2" not in remarks["notes"][0]
    assert remarks["flags"] == {"throttled": "gpu0 slowed for heat", "setting_changed": "RAPL was changed."}
    assert notes_and_flags(Window({}, [], {}), [], []) == {}


def test_progress_of_an_epoch_is_recorded_until_the_epoch_ends(tmp_path):
    record, parts, seen = Record(tmp_path), {"copy_s": 0.5}, []

    def messages():
        yield WindowOpening("epoch", 2, 90)
        yield Progress(45, None, parts)
        yield Progress(50)
        seen.extend(map(json.loads, (tmp_path / PROGRESS).read_text().splitlines()))
        yield WindowClosed(1, 2)
        assert not (tmp_path / PROGRESS).exists()
        yield WindowOpening("val", 2, 9)
        yield Progress(5, None, parts)
        assert not (tmp_path / PROGRESS).exists()

    plan = SimpleNamespace(record=record, job=job_of(), targets={}, run={})
    instruments = Mock(gauges=Mock(series=None), data_source=Mock(prepare=lambda epoch: []))
    run_event_loop(messages(), Mock(), plan, instruments, Mock(), Mock(), Mock())
    assert seen == [
        {"epoch": 2, "steps": 45, "epoch_steps": 90, "parts": parts},
        {"epoch": 2, "steps": 50, "epoch_steps": 90, "parts": {}},
    ]


def test_script_without_a_number_of_epochs_has_no_forecast_but_the_reason():
    run = {}
    plan = SimpleNamespace(job=job_of(measure={"command": ["a.py"]}), run=run, describe=lambda **new: run.update(new))
    model = Forecaster([], 1, lambda count: array("f"))
    assert (make_forecast(model, WindowOpening("epoch", 0, 9, epochs=2), plan), run) == ({}, {})
    assert make_forecast(model, WindowOpening("epoch", 1, 9), plan) == {}
    assert run == {"forecast": {"reason": "the number of epochs is not known"}}


def test_failure_during_the_trace_is_only_a_note():
    def messages():
        yield TraceFailed("no trace")
        raise WorkerError("oom", "the kernel killed the worker")

    assert finish_trace(iter([TraceFailed("slow")]), None, None) == ["slow"]
    assert finish_trace(messages(), None, None) == ["no trace: the kernel killed the worker"]


PARTS_DIFFER = "the parts of the total are sampled at different times."
SAMPLED = {"unavailable": {}, "peak_w": 9.0, "half_width_j": 0.5}


@pytest.mark.parametrize(
    ("sampling", "source", "ranks", "recorded"),
    [
        (SAMPLED, "counter", 1, {"energy_uncertainty_j": 0.5, "response": Response(0.1)._asdict()}),
        (None, "none", 1, {"reason": "no meter"}),
        (SAMPLED, "estimated", 1, {"reason": "energy is estimated, not measured."}),
        (SAMPLED, "sampled", 2, {"reason": "several ranks train, and their modules run at different times."}),
        ({**SAMPLED, "unavailable": {"gpu0": "lost"}}, "sampled", 1, {"reason": "gpu0: lost"}),
        ({**SAMPLED, "peak_w": None}, "counter", 1, {"reason": PARTS_DIFFER}),
    ],
)
def test_power_of_the_traced_steps_is_recorded_or_its_absence_has_a_reason(tmp_path, sampling, source, ranks, recorded):
    powers = PowerSamples(array("q", [1, 2]), {"gpu0": array("d", [8, 9])}, array("d", [8, 9]), Response(0.1))
    meter = SimpleNamespace(
        energy={"source": source, "reason": "no meter" if source == "none" else None},
        sampling=lambda *window_ns: sampling and SimpleNamespace(**sampling),
        drain=lambda before_ns: powers,
    )
    plan = SimpleNamespace(ranks=ranks, node=SimpleNamespace(nodes=1), record=Record(tmp_path))
    traced = Traced(1, 2, wall_offset_ns=3, loads=[])
    assert traced_power(traced, plan, meter) == {**traced._asdict(), **recorded}
    assert (tmp_path / "power.csv").read_text().splitlines()[1:] == ["1,8.0000,8.0000", "2,9.0000,9.0000"]


@pytest.mark.parametrize(
    ("training", "metered", "refusal"),
    [
        ({"accelerator": "cuda", "gpu": {"uuid": "1234"}}, ["1234"], None),
        ({"accelerator": "cuda", "gpu": {}}, ["1234"], None),
        ({"accelerator": "cuda", "gpu": {"uuid": "5678"}}, ["1234"], "GPU-5678 trains, but GPU-1234 is metered"),
        ({"accelerator": "cpu", "torch": "2.15.0"}, ["1234"], "the CPU trains, but GPU-1234 is metered"),
        ({"gpus": ["1234", "5678"]}, ["1234", "5678"], None),
        ({"gpus": [None, None]}, ["1234", "5678"], None),
        ({"gpus": ["1234", "9999"], "gpus_here": ["1234"]}, ["1234"], None),
        ({"gpus": ["1234", "9999"]}, ["1234", "5678"], "GPU-1234,GPU-9999 trains, but GPU-1234,GPU-5678 is"),
        ({"gpus": ["1234", "1234"]}, ["1234", "5678"], "GPU-1234 trains, but GPU-1234,GPU-5678 is metered"),
    ],
)
def test_metered_gpus_must_be_those_that_train(training, metered, refusal):
    training = {"accelerator": "cuda:0", **training}
    plan = SimpleNamespace(run={"training": training}, gpus=[f"GPU-{uuid}" for uuid in metered], job=job_of())
    counter = Instrument(Domain("counter", 0.1, "board"), float)
    meter = Meter(counters={"gpu0": counter}, total=["gpu0"], covers="GPUs used")
    with pytest.raises(RuntimeError, match=refusal) if refusal else nullcontext():
        check_metered(plan, meter)
