from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace

import pytest
import torch

from epochmeter.worker import device
from epochmeter.worker.clock import Clock
from epochmeter.worker.device import batch_mover, map_tensors, peak_memory, sample_count, synchronize_and_reset_peaks

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """Two GPUs; returns the list of calls."""
    called = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: called.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda gpu: called.append(f"reset peak {gpu}"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda gpu: [1234, 2345][gpu])
    described = SimpleNamespace(name="NVIDIA H200", total_memory=150, uuid="6d5a4f3e")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: described)
    return called


def test_gpu_is_used_unless_cpu_is_configured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [device.accelerator(name).type for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [device.accelerator(name).type for name in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(
        RuntimeError, match=r"accelerator=cuda.*finds no GPU\n  hint: .*device\.python.*accelerator=cpu"
    ):
        device.accelerator("cuda")


def test_peak_memory_is_the_maximum_over_the_process_gpus(gpu):
    synchronize_and_reset_peaks(CPU)
    assert gpu == []
    synchronize_and_reset_peaks(CUDA)
    assert gpu == ["synchronize", "reset peak 0", "reset peak 1"]
    assert peak_memory(CPU) == {}
    assert peak_memory(CUDA) == {"gpu_memory_peak_bytes": 2345}
    assert peak_memory(torch.device("cuda", 0)) == {"gpu_memory_peak_bytes": 1234}


def test_gpu_is_described_with_its_uuid_if_torch_knows_it(gpu, monkeypatch):
    assert not {"gpu", "cudnn_benchmark"} & device.describe_device(CPU).keys()
    described = {"name": "NVIDIA H200", "memory_bytes": 150}
    assert device.describe_device(CUDA)["gpu"] == {**described, "uuid": "6d5a4f3e"}
    old = SimpleNamespace(name="NVIDIA H200", total_memory=150)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: old)
    assert device.describe_device(CUDA)["gpu"] == described


def test_algorithm_settings_are_applied_and_recorded(gpu):
    for deterministic, benchmark in ((False, False), (False, True), (True, False)):
        try:
            device.choose_algorithms(deterministic, cudnn_benchmark=benchmark)
            assert torch.are_deterministic_algorithms_enabled() is deterministic
            assert torch.backends.cudnn.benchmark is device.describe_device(CUDA)["cudnn_benchmark"] is benchmark
        finally:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.benchmark = False


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_real_gpu_clock_agrees_with_the_host_clock():
    matrix = torch.rand(2048, 2048, device="cuda")
    clock = Clock(device.make_timeline(CUDA))
    synchronize_and_reset_peaks(CUDA)
    clock.open()
    for _ in clock.batches(range(300), lambda batch: batch):
        matrix @ matrix
    clock.close()
    parts = clock.parts()
    assert abs(parts["clock_residual_s"]) <= 0.001 * parts["e2e_s"]


Pair = namedtuple("Pair", "image boxes")


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


class Graph:
    """A batch with its own `to`, like those of PyTorch Geometric."""

    def to(self, device):
        return SimpleNamespace(device=str(device))

    def pin_memory(self):
        return SimpleNamespace(device="pinned")


def test_nested_batches_keep_their_container_types():
    numbers = torch.zeros(2)
    for batch, moved in (
        ({"image": numbers, "name": "a"}, {"image": "moved", "name": "a"}),
        (OrderedDict(b=numbers, a=[numbers, 3]), OrderedDict(b="moved", a=["moved", 3])),
        (UserDict(a=numbers), UserDict(a="moved")),
        (defaultdict(list, a=numbers), defaultdict(list, a="moved")),
        (MappingProxyType({"a": numbers}), MappingProxyType({"a": "moved"})),
        (Pair(numbers, [numbers, (numbers,)]), Pair("moved", ["moved", ("moved",)])),
        (Sample(numbers, "cat"), Sample("moved", "cat")),
        ((numbers, None, b"raw"), ("moved", None, b"raw")),
    ):
        result = map_tensors(lambda tensor: "moved", batch, "to")
        assert (type(result), result) == (type(batch), moved)
        assert sample_count(batch) == 2, "the length of the first tensor; the original is unchanged"
    assert sample_count([1, 2, 3]) == 3


def test_objects_use_their_own_to_and_images_get_their_memory_format():
    move = batch_mover(torch.device("meta"), torch.channels_last)
    graph, images, labels = move([Graph(), torch.zeros(2, 3, 4, 4), torch.zeros(2)])
    assert (graph.device, images.device.type, labels.device.type) == ("meta", "meta", "meta")
    assert images.is_contiguous(memory_format=torch.channels_last)
    on_cpu = batch_mover(CPU, torch.channels_last)(torch.zeros(2, 3, 4, 4))
    assert on_cpu.is_contiguous(memory_format=torch.channels_last)
    assert map_tensors(torch.clone, {"graph": Graph()}, "pin_memory")["graph"].device == "pinned"
