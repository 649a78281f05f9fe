import gzip
import itertools
import json

import pytest
import torch

from epochmeter.worker.trace import TorchTrace


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


def test_trace_is_valid_json_with_only_the_recorded_steps(tmp_path, endless, drawn):
    path = tmp_path / "trace.json.gz"
    TorchTrace(warmup_steps=1, steps=2).record_trace(str(path), endless, multiply)
    assert len(drawn) == 1 + 2
    with gzip.open(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event.get("name") == "aten::dot" for event in events) == 2
    assert {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep")} == {
        "ProfilerStep#1",
        "ProfilerStep#2",
    }


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
