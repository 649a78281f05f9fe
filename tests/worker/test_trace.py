import copy
import gzip
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from epochmeter.trace.attribution import attribute
from epochmeter.trace.kineto import load
from epochmeter.worker import trace as trace_module
from epochmeter.worker.trace import ALL_THREADS, NsightTrace, TorchTrace, module_ranges


def write_to_a_full_disk(profiler, path):
    Path(path).write_text("{")
    raise OSError("the disk is full")


def test_trace_has_only_the_recorded_steps_and_is_written_atomically(tmp_path, monkeypatch):
    path, drawn = tmp_path / "trace.json.gz", itertools.count()

    def multiply(batches):
        for batch in batches:
            batch @ batch

    def fail(batches):
        next(batches)
        raise RuntimeError("out of memory")

    endless = (torch.ones(3) for _ in drawn)
    with pytest.raises(RuntimeError, match="out of memory"):
        TorchTrace().record_trace(str(path), endless, fail)
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as disk:
        disk.setattr(torch.profiler.profile, "export_chrome_trace", write_to_a_full_disk)
        with pytest.raises(OSError, match="full"):
            TorchTrace(1, 1).record_trace(str(path), itertools.repeat(torch.ones(3)), multiply)
    assert list(tmp_path.iterdir()) == []
    TorchTrace(warmup_steps=1, steps=2).record_trace(None, endless, multiply)  # as on all ranks except the first
    assert list(tmp_path.iterdir()) == []
    synchronized = []
    monkeypatch.setattr(trace_module, "_synchronize", lambda: synchronized.append(next(drawn)))
    TorchTrace(warmup_steps=1, steps=2).record_trace(str(path), endless, multiply)
    assert list(tmp_path.iterdir()) == [path]
    assert synchronized == [1 + 3 + 1, 1 + 3 + 4], "at both ends of the traced steps"
    with gzip.open(path, "rt") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert names.count("aten::dot") == 2
    assert {name for name in names if name.startswith("ProfilerStep")} == {"ProfilerStep#1", "ProfilerStep#2"}


def test_trace_is_written_with_bytes_that_are_no_text_and_times_gzip_cannot_have(tmp_path, monkeypatch):
    export = torch.profiler.profile.export_chrome_trace

    def export_damaged(profiler, path):
        export(profiler, path)
        Path(path).write_bytes(Path(path).read_bytes().replace(b"aten::dot", b"aten::\xff"))

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", export_damaged)
    monkeypatch.setattr("time.time", lambda: 5e9)  # in 2128
    path = tmp_path / "trace.json.gz"
    TorchTrace(1, 1).record_trace(str(path), itertools.repeat(torch.ones(3)), lambda all: [one @ one for one in all])
    assert "aten::\ufffd" in load(path).names


def test_a_trace_that_torch_did_not_write_is_an_error_with_the_cause(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda *_: None)
    with pytest.raises(OSError, match="the profiler could not write it"):
        trace_module.export(torch.profiler.profile(), str(tmp_path / "trace.json.gz"))


def test_nsight_profiles_the_marked_steps_only(monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name, module in (("synchronize", torch.cuda), ("start", torch.cuda.profiler), ("stop", torch.cuda.profiler)):
        monkeypatch.setattr(module, name, lambda name=name: events.append(name))
    profiler = NsightTrace("ncu", start=1, stop=3, timeout_s=1, warmup_steps=4)
    assert (profiler.warmup_steps, profiler.steps) == (4, 5), "of the trace that is recorded as well"
    events.extend(profiler.mark_steps(iter(range(9))))
    assert events == [0, "start", "synchronize", 1, 2, "synchronize", "stop"]


def test_modules_and_operators_are_in_the_trace(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(4))
    images = torch.randn(16, 3, 64, 64)
    model(images)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(batches):
        for batch in batches:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    path = tmp_path / "trace.json.gz"
    with module_ranges(model):
        (profiler := TorchTrace(warmup_steps=2, steps=3)).record_trace(str(path), itertools.repeat(images), train)
    trace = load(path)
    (opened_ns, closed_ns), (first, *_, last) = profiler.traced_ns, trace.steps
    assert closed_ns - opened_ns == pytest.approx(trace.end_ns[last] - trace.start_ns[first], rel=0.02, abs=5e6)
    result = attribute(trace)
    (convolution,) = (row for row in result.modules if row.name == "0")
    assert (convolution.kind, set(convolution.phases_s)) == ("Conv2d", {"forward", "backward"})
    assert result.explained_fraction > 0.5  # 0.98 without other load, see benchmarks/accuracy/traces.py
    for rows in (result.modules, result.operators):
        assert sum(row.total_s for row in rows) == pytest.approx(result.total_s, rel=0.01)
    (outside,) = (row for row in result.modules if row.name == "(outside modules)")
    assert outside.phases_s.keys() == {"forward", "backward"}
    assert any(row.inputs == "16x3x64x64, 32x3x3x3, 32" for row in result.operators)


@pytest.mark.skipif(not ALL_THREADS, reason="this version of torch traces no other threads")
def test_forward_passes_in_other_threads_as_of_replicas_are_traced(tmp_path):
    model, path = torch.nn.Sequential(torch.nn.Linear(2, 2)), tmp_path / "trace.json.gz"

    def train(batches):
        with ThreadPoolExecutor(1) as other:
            for batch in batches:
                other.submit(copy.copy(model), batch).result().sum().backward()

    with module_ranges(model):
        TorchTrace(1, 1).record_trace(str(path), itertools.repeat(torch.ones(1, 2)), train)
    modules = {row.name: set(row.phases_s) for row in attribute(load(path)).modules}
    assert modules["0"] == {"backward"}, "the backward pass is in the training thread"


def ranges(model):
    """The ranges of a replica of a model, as DataParallel makes it, and of another module."""
    with torch.profiler.profile() as profiler:
        copy.copy(model)(torch.ones(1))
        torch.nn.ReLU()(torch.ones(1))
    return {event.key for event in profiler.key_averages() if event.key.startswith("module: ")}


def test_replicas_and_other_modules_have_names_only_while_tracing():
    model, backward = torch.nn.Sequential(torch.nn.Linear(1, 1)), torch.Tensor.backward
    with module_ranges(model):
        assert torch.Tensor.backward is not backward
        assert ranges(model) == {"module:  (Sequential)", "module: 0 (Linear)", "module: (ReLU) (ReLU)"}
    assert torch.Tensor.backward is backward
    assert ranges(model) == set()
    assert not any(name.startswith("_epochmeter") for module in model.modules() for name in vars(module))
