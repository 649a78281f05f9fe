"""Memory by kind, from real steps and from scripted events."""

import json
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from epochmeter.shared.problem import Place, Problem
from epochmeter.shared.protocol import TraceFailed
from epochmeter.worker import memory as memory_module
from epochmeter.worker import training
from epochmeter.worker.data.synthetic import SyntheticBatches
from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.memory import KEPT, peak_by_kind, record_memory
from epochmeter.worker.precision import NullContext
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification
from epochmeter.worker.trace import module_ranges

FLOAT, LONG = 4, 8


def memory(at, address, size, **more):
    return {"ts": at, "name": "[memory]", "args": {"Addr": address, "Bytes": size, "Device Type": 0, **more}}


def saved(at, address):
    return {"ts": at, "dur": 0, "name": f"epochmeter saved {address}"}


def module(at, duration, name):
    return {"ts": at, "dur": duration, "name": f"module: {name}"}


EVENTS = [
    module(0, 10, "outer (Net)"), module(1, 5, "inner (Linear)"),
    memory(2, 100, 40), saved(3, 100), saved(3, 1), saved(3, 999), memory(4, 200, 8), memory(5, 200, -8),
    memory(7, 300, 20), saved(8, 300), memory(9, 350, 4), memory(12, 400, 16), saved(12, 400), memory(13, 100, -40),
    memory(14, 500, 1),
]  # fmt: skip


def test_peak_is_divided_by_kind_and_module_and_on_a_gpu_by_fragmentation():
    before, after = {1: ("weights", 50), 2: ("optimizer", 25)}, {1: ("weights", 50), 400: ("gradients", 16)}
    found = peak_by_kind(EVENTS, before, after, memory_module.ON_CPU)
    assert found["peak_bytes"] == sum(found["kinds"].values()) == 155
    expected = {"weights": 50, "optimizer": 25, "activations": 60, "gradients": 16, "temporary": 4}
    assert {kind: size for kind, size in found["kinds"].items() if size} == expected
    assert found["modules"] == {"inner (Linear)": 40, "outer (Net)": 20}
    gpu = {"Device Type": 1, "Device Id": 1}
    event = memory(1, 7, 30, **gpu, **{"Total Allocated": 100, "Total Reserved": 128})
    others = memory(0, 5, 999), memory(2, 8, 999, **{**gpu, "Device Id": 0})
    found = peak_by_kind([*others, event], {1: ("weights", 50)}, {}, gpu)
    assert (found["peak_bytes"], found["reserved_bytes"]) == (100, 128)
    assert (found["kinds"]["other"], found["kinds"]["fragmentation"]) == (20, 28)


@pytest.fixture
def trainer():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.Linear(256, 10))
    task, optimizer = Classification(auxiliary=0), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_epoch(batches):
        train(model, batches, task, optimizer, EpochStats(task), NullContext(), GradScaler(enabled=False))

    return SimpleNamespace(model=model, optimizer=optimizer, device=torch.device("cpu"), train_epoch=train_epoch)


def test_step_of_a_linear_network_has_the_bytes_of_its_tensors(trainer, tmp_path):
    batch = torch.randn(512, 64), torch.randint(10, (512,))
    trainer.train_epoch([batch])
    path = tmp_path / "memory.json"
    with module_ranges(trainer.model):
        record_memory(str(path), trainer, batch)
    found = json.loads(path.read_text())
    kinds, weights = found["kinds"], sum(parameter.numel() for parameter in trainer.model.parameters()) * FLOAT
    assert (kinds["weights"], kinds["optimizer"], kinds["inputs"]) == (weights, weights, 512 * (64 * FLOAT + LONG))
    hidden = 512 * 256 * FLOAT
    assert found["modules"]["1 (Linear)"] == hidden
    assert hidden <= kinds["activations"] <= hidden + 4 * 512 * 10 * FLOAT
    assert found["peak_bytes"] == sum(kinds.values()) < found["capacity_bytes"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory.json"]
    record_memory(str(path), trainer, (batch[0][:1], batch[1][:1]))  # the peak is at the end of the backward pass
    assert json.loads(path.read_text())["kinds"]["gradients"] == weights
    record_memory(None, trainer, batch)


def test_capacity_is_limited_by_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_module, "CONTAINER_LIMITS", (tmp_path / "missing", tmp_path / "limit"))
    capacities = []
    for limit in ("max", "4096"):
        (tmp_path / "limit").write_text(limit + "\n")
        memory_bytes = memory_module.device_memory(torch.device("cpu"), {"kinds": dict.fromkeys(KEPT, 0)})
        capacities.append(memory_bytes["capacity_bytes"])
    assert capacities[0] > capacities[1] == 4096


@pytest.mark.parametrize("is_peer_error", [False, True])
def test_memory_that_cannot_be_measured_does_not_lose_the_trace(trainer, tmp_path, monkeypatch, is_peer_error):
    monkeypatch.setattr(training, "record_memory", Mock(side_effect=RuntimeError("the step failed")))
    monkeypatch.setattr(training, "is_peer_rank_error", lambda error: is_peer_error)  # the other rank reports it
    trainer.move, trace = lambda batch: batch, tmp_path / "trace.json.gz"
    images = {"batch": 4, "seed": 0, "dataset": {"size": 8, "channels": 1, "classes": 10}}
    loader = SyntheticBatches(4, images, Classification(auxiliary=0), pinned=False)
    profiler = {"_target_": "epochmeter.worker.trace.TorchTrace", "warmup_steps": 1, "steps": 1}
    job, connection = {"profiler": profiler, "compile": False}, Mock()
    training.record_profile(SimpleNamespace(folder=tmp_path), job, Single(1), trainer, loader, connection)
    traced, *failed = (call.args[0] for call in connection.send.call_args_list)
    problem = Problem("no memory by kind: the step failed", where=Place(file="worker.log"))
    assert failed == ([] if is_peer_error else [TraceFailed(problem)])
    assert traced.opened_ns < traced.closed_ns
    assert trace.exists()
