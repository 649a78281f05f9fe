"""The trace of a script's steps: it changes no weight, and its errors end neither the script nor the measurement."""

import gzip
import json
import os
import shutil

import pytest
import torch
from recorded import Connection, Script
from torch import nn
from torch.utils.data import DataLoader

from epochmeter.agent import recording
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import Traced, TraceFailed
from epochmeter.worker.trace import TorchTrace

STEPS = 16
DATA = [(torch.full((4,), number / STEPS), number % 2) for number in range(2 * STEPS)]
TWO_EPOCHS = [("epoch", 0, STEPS), ("val", 0, STEPS), ("epoch", 1, STEPS), ("val", 1, STEPS)]


@pytest.fixture
def train(tmp_path, monkeypatch):
    """train(trace arguments) -> the weights, the measured windows, and the messages about the trace."""
    monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "events"))

    def run(ends_after=STEPS, **trace):
        shutil.rmtree(tmp_path / "events", ignore_errors=True)
        torch.manual_seed(0)
        levels = set()  # of the profiler's messages, which child processes of the script would inherit
        script = Script(tmp_path, trace and {"warmup_steps": 1, "steps": 3, **trace})
        loader = DataLoader(DATA, 2, shuffle=True)
        script.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
        script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.01)
        script.optimizer.register_step_post_hook(lambda *_: levels.add(os.environ.get("KINETO_LOG_LEVEL")))
        for _ in range(2):
            script.train(loader, ends_after)
            script.evaluate(loader)
        script.agent.end()
        script.unhook()
        assert levels == {None}
        weights = [parameter.tolist() for parameter in script.model.parameters()]
        return weights, script.windows, script.connection.of(Traced, TraceFailed)

    return run


@pytest.mark.parametrize("epoch", [0, 1])
def test_steps_after_a_quarter_of_an_epoch_are_traced_and_weights_are_those_without(train, tmp_path, epoch):
    plain, _, _ = train()
    assert list(tmp_path.glob("trace*")) == []
    weights, windows, messages = train(epoch=epoch)
    assert (weights, windows) == (plain, TWO_EPOCHS)
    assert [type(message) for message in messages] == [Traced]
    assert 0 < messages[0].opened_ns < messages[0].closed_ns
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        names = {event.get("name", "") for event in json.load(file)["traceEvents"]}
    assert {name for name in names if name.startswith("ProfilerStep")} == {f"ProfilerStep#{n}" for n in (5, 6, 7)}
    assert {"module: 0 (Linear)", "Tensor.backward", "aten::addmm"} <= names


def test_failure_of_the_profiler_is_reported_once(train, monkeypatch, tmp_path):
    def fail(profiler, path, batches, first):
        yield from range(2)
        raise RuntimeError("no Kineto")

    monkeypatch.setattr(TorchTrace, "recorded", fail)
    _, windows, messages = train(epoch=0)
    assert (windows, messages) == (TWO_EPOCHS, [TraceFailed(Problem("no trace: RuntimeError: no Kineto"))])
    assert list(tmp_path.glob("*trace*")) == []


def test_epoch_that_ends_within_the_steps_to_trace_has_no_trace(train, tmp_path):
    messages = train(ends_after=6, epoch=0)[2]
    assert messages == [TraceFailed(Problem("no trace: the epoch ended within the 4 steps to trace"))]
    assert list(tmp_path.glob("*trace*")) == []
    assert train(epoch=0)[2] != messages  # the profiler is free again
