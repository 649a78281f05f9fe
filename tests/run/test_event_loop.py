"""How the controller handles the training process's messages."""

from types import SimpleNamespace

import pytest
from default_jobs import job_of

from epochmeter.power.meter import Domain, Instrument, Meter
from epochmeter.run.event_loop import check_metered, finish_trace, notes_and_flags
from epochmeter.run.window import Window
from epochmeter.run.worker_process import WorkerError
from epochmeter.shared.protocol import TraceFailed


def test_line_has_notes_and_flags_without_secrets():
    window = Window({}, ["epoch 3: gpu0 slowed for heat"], {"throttled": "gpu0 slowed for heat"})
    remarks = notes_and_flags(window, ["no such file: http://ann:hunter2@host/a.png"], ["RAPL was changed."])
    assert remarks["notes"][1:] == ["epoch 3: gpu0 slowed for heat", "RAPL was changed."]
    assert "hunter2" not in remarks["notes"][0]
    assert remarks["flags"] == {"throttled": "gpu0 slowed for heat", "setting_changed": "RAPL was changed."}
    assert notes_and_flags(Window({}, [], {}), [], []) == {}


def test_failure_during_the_trace_is_only_a_note():
    def messages():
        yield TraceFailed("no trace")
        raise WorkerError("oom", "the kernel killed the worker")

    assert finish_trace(iter([TraceFailed("slow")]), None, None) == ["slow"]
    assert finish_trace(messages(), None, None) == ["no trace: the kernel killed the worker"]


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
    if refusal:
        with pytest.raises(RuntimeError, match=refusal):
            check_metered(plan, meter)
    else:
        check_metered(plan, meter)
