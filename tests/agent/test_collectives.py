"""Waits for other ranks, of two real gloo ranks with an agent each; the second one is slow."""

import importlib
import json
import os
import time
from functools import cache
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
import torch
from project import free_ports
from recorded import Connection, Script, events_of
from timed import repeat_of
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from epochmeter.agent import recording
from epochmeter.agent.collectives import COMPILED, OTHER_STREAMS, Collectives
from epochmeter.segmentation.logs import FactsFile
from epochmeter.shared import events
from epochmeter.worker.collectives import FUNCTIONS

NAP_S, STEPS = 0.02, 5
KINDS = ("ddp", "buffers", "all_reduce", "wait", "barrier")


def train(script, kind, loader):
    """Train an epoch; return how long the calls of `torch.distributed` took, by a clock around them."""
    norm = nn.BatchNorm1d(2) if kind == "buffers" else nn.Identity()
    module = nn.Sequential(nn.Linear(4, 2), norm)
    model = DistributedDataParallel(module) if kind in ("ddp", "buffers") else module
    optimizer, waited_s = torch.optim.SGD(module.parameters(), lr=0.1), 0.0
    for inputs in script.batches(loader):
        time.sleep(NAP_S * distributed.get_rank())
        optimizer.zero_grad()
        model(inputs).sum().backward()
        begun = time.perf_counter()
        if kind == "all_reduce":
            distributed.all_reduce(module[0].weight.grad)
        elif kind == "wait":
            distributed.all_reduce(module[0].weight.grad, async_op=True).wait()
        elif kind == "barrier":
            distributed.barrier()
        waited_s += time.perf_counter() - begun
        optimizer.step()
    return waited_s


def main(folder, rank, port):
    """Train one epoch of each kind as this rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    recording.ScriptConnection = lambda *_: Connection(folder / "events")
    modules = distributed, distributed.distributed_c10d
    places = [(module, name) for module in modules for name in FUNCTIONS if hasattr(module, name)]
    originals = [getattr(*place) for place in places]
    script = Script(folder)
    distributed.init_process_group("gloo")
    hooked = all(getattr(*place).__wrapped__ is original for place, original in zip(places, originals, strict=True))
    loader = [torch.ones(3, 4)] * STEPS
    distributed.barrier()
    waited_s = [train(script, kind, loader) for kind in KINDS]
    loops = [(window.parts, [*window.rank_rows]) for window in script.measured.windows if window.name == "epoch"]
    script.unhook()
    restored = [getattr(*place) for place in places] == originals
    results = {"waited_s": waited_s, "loops": loops, "restored": restored, "hooked": hooked}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


@pytest.fixture
def ranks(request, tmp_path_factory):
    """Results of two ranks."""
    return results_of_ranks(tmp_path_factory.getbasetemp() / f"collectives{repeat_of(request)}")


@cache
def results_of_ranks(folder):
    (port,) = free_ports(1)
    context = get_context("spawn" if torch.cuda.is_available() else "fork")
    folders = [folder / f"rank{rank}" for rank in range(2)]
    for of_rank in folders:
        of_rank.mkdir(parents=True)
    processes = [context.Process(target=main, args=(of_rank, rank, port)) for rank, of_rank in enumerate(folders)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank, folder in enumerate(folders)]


@pytest.mark.timed
def test_first_rank_waits_for_the_naps_of_the_other_in_each_kind_of_collective(ranks):
    for number, kind in enumerate(KINDS):
        (parts, rows), (other, _) = (rank["loops"][number] for rank in ranks)
        assert parts["steps"] == STEPS
        waits_s = rows[3::4]
        assert sum(waits_s) == pytest.approx(parts["communication_s"], abs=0.02), kind
        assert parts["communication_s"] - other["communication_s"] > 0.6 * STEPS * NAP_S, kind
        assert parts["communication_s"] < parts["e2e_s"]
        assert sum(wait_s > 0.5 * NAP_S for wait_s in waits_s) >= STEPS - 2, waits_s  # on a busy machine
        if kind in ("all_reduce", "wait", "barrier"):
            assert parts["communication_s"] == pytest.approx(ranks[0]["waited_s"][number], abs=0.02)


def test_functions_are_replaced_in_both_modules_and_restored(ranks):
    assert all(rank["hooked"] and rank["restored"] for rank in ranks)


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script in a process group of one rank, which counts as two."""
    monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "events"))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(distributed, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(torch, "compile", lambda module: module)  # once used, agents record no forward passes
    script = Script(tmp_path)
    yield script
    script.unhook()
    script.agent.end()
    distributed.destroy_process_group()


def facts_of(script):
    facts = FactsFile(script.folder / f"{os.getpid()}.jsonl").read()
    return [line["reason"] for line in facts if line["kind"] == "collectives"]


def kinds_of(script):
    return [event.kind for of_thread in events_of(script.folder).values() for event in of_thread]


def test_process_group_that_was_joined_before_is_hooked(script):
    script.train([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))] * 3)
    assert facts_of(script) == [""]
    assert kinds_of(script).count(events.GRADIENTS_READY) == 3
    (window,) = script.measured.windows
    assert 0 <= window.parts["communication_s"] < 0.05


def test_functions_are_restored_before_anything_is_compiled(script):
    recorded, backward = distributed.all_reduce, torch.autograd.backward
    torch.compile(nn.Linear(1, 1))
    assert distributed.all_reduce is recorded.__wrapped__
    assert distributed.Work.wait.__name__ == "wait"
    assert torch.autograd.backward is backward


def test_compiled_backward_passes_are_not_watched_and_the_reason_is_noted(script, monkeypatch):
    compiled = importlib.import_module("torch._dynamo.compiled_autograd")
    monkeypatch.setattr(compiled, "compiled_autograd_enabled", True)
    script.train([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))] * 3)
    assert facts_of(script) == ["", COMPILED]
    assert events.GRADIENTS_READY not in kinds_of(script)
    (window,) = script.measured.windows
    assert "communication_s" not in window.parts
    assert any(COMPILED in note for note in script.measured.notes)


def test_collective_on_another_stream_makes_the_waits_unknown(script, monkeypatch):
    of_agent = Collectives(script.agent)
    of_agent._reason = ""
    script.train([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))] * 3)
    script.agent.thread.marks = type("Marks", (), {"device": None, "write_completed": lambda self: None})()
    of_agent._thread.stream = "training"
    streams = iter(["training", "other", "other"])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: next(streams))
    for _ in range(3):
        of_agent._check_stream()
    assert facts_of(script) == ["", OTHER_STREAMS]
    script.agent.thread.marks = None


def test_error_of_a_collective_reaches_the_script_without_frames_of_the_agent(script):
    script.train([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))] * 2)
    with pytest.raises(TypeError) as raised:
        distributed.all_reduce("no tensor")
    assert not [entry for entry in raised.traceback if "agent/collectives" in str(entry.path)]
    assert script.agent.is_on


def test_single_process_is_not_hooked(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "ScriptConnection", lambda *_: Connection(tmp_path / "events"))
    script, backward = Script(tmp_path), torch.autograd.backward
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        assert torch.autograd.backward is backward
        script.train([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))] * 2)
        assert facts_of(script) == []
    finally:
        script.unhook()
        script.agent.end()
        distributed.destroy_process_group()


def test_gradients_of_a_gpu_have_a_timestamp_of_its_current_stream(script, monkeypatch):
    loader = [(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))] * 2
    script.train(loader)
    numbers = iter(range(100))
    script.agent.thread.marks = SimpleNamespace(
        device=None, record=lambda: next(numbers), write_completed=lambda: None, collect=lambda now_ns: None
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "training")
    script.model(torch.ones(2, 4)).sum().backward()
    script.agent.thread.marks = None
    (of_thread,) = events_of(script.folder).values()
    *_, ready, backward = of_thread
    assert (ready.kind, ready.flags) == (events.GRADIENTS_READY, events.HAS_DEVICE_TIME)
    assert (backward.kind, backward.other, backward.number) == (events.BACKWARD, ready.number - 1, ready.number + 1)
