import gzip
import itertools
import json

import pytest
import torch

from epochmeter.shared.instantiate import instantiate_spec
from epochmeter.worker.trace import NullProfiler, TorchTrace


@pytest.fixture
def drawn():
    return []


@pytest.fixture
def endless(drawn):
    """Batches without end, which tell how many were drawn."""
    return (drawn.append(number) or torch.ones(3) for number in itertools.count())


def multiply(batches):
    for batch in batches:
        batch @ batch


def test_trace_is_valid_json_with_only_the_recorded_steps(tmp_path, endless):
    path = tmp_path / "trace.json.gz"
    TorchTrace(warmup_steps=1, steps=2).record_trace(str(path), endless, multiply)
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("name") == "aten::dot" for event in events) == 2
    assert {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep")} == {
        "ProfilerStep#1",
        "ProfilerStep#2",
    }


def test_trace_draws_only_the_batches_it_needs(tmp_path, endless, drawn):
    TorchTrace(warmup_steps=2, steps=3).record_trace(str(tmp_path / "trace.json.gz"), endless, multiply)
    assert len(drawn) == 2 + 3


def test_trace_is_written_atomically(tmp_path, endless):
    path = tmp_path / "trace.json.gz"

    def fail(batches):
        next(batches)
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        TorchTrace().record_trace(str(path), endless, fail)
    assert list(tmp_path.iterdir()) == []
    TorchTrace(warmup_steps=1, steps=1).record_trace(str(path), endless, multiply)
    assert list(tmp_path.iterdir()) == [path]


def test_no_trace_trains_on_nothing(tmp_path, endless, drawn):
    instantiate_spec({"_target_": "epochmeter.worker.trace.NullProfiler", "name": "none"}).record_trace(
        str(tmp_path / "trace.json.gz"), endless, multiply
    )
    NullProfiler().record_trace(str(tmp_path / "trace.json.gz"), endless, multiply)
    assert drawn == []
    assert list(tmp_path.iterdir()) == []
