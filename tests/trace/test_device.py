from types import SimpleNamespace

import numpy as np
import pytest
from cases import case, cases
from kineto import Kineto

from epochmeter.trace.device import IDLE_CAUSES, measure_device, stretches

US = 1e-6


@pytest.fixture
def kineto():
    """One step of 100 us, with a kernel of 20 us that was launched at the start of the step."""
    trace = Kineto()
    trace.step(0, 0, 100)
    trace.launch("sgemm_first", 10, 20, launched=5)
    return trace


def measure(kineto, tmp_path):
    time = measure_device(kineto.load(tmp_path))
    idle_s = sum(time[f"idle_{cause}_s"] for cause in IDLE_CAUSES if time)
    assert not time or time["busy_s"] + idle_s == pytest.approx(time["wall_s"])
    return time


def test_stretches_in_which_events_run_agree_with_a_raster():
    numbers = np.random.default_rng(0)
    for _ in range(50):
        start_ns = numbers.integers(0, 50, 12)
        trace = SimpleNamespace(start_ns=start_ns, end_ns=start_ns + numbers.integers(0, 10, 12))
        raster = np.zeros(60, bool)
        for begin, end in zip(start_ns[:6], trace.end_ns[:6], strict=True):
            raster[begin:end] = True
        begins_ns, lasts_ns, (running, _) = stretches(trace, (np.arange(6), np.arange(6, 12)), (5, 40))
        assert np.repeat(running, lasts_ns).tolist() == raster[begins_ns[0] : begins_ns[-1]].tolist()


def test_busy_time_is_the_union_over_streams_and_kernels_count_where_launched(kineto, tmp_path):
    kineto.launch("sgemm_other", 20, 30, launched=6, stream=8)
    kineto.launch("before", 1, 2, launched=-5)
    kineto.launch("late", 120, 30, launched=90)
    time = measure(kineto, tmp_path)
    assert (time["busy_s"], time["kernel_s"]) == (pytest.approx(70 * US), pytest.approx(80 * US))
    assert (time["kernels"], time["wall_s"]) == (3, pytest.approx(150 * US))
    for name, launched in (("graph_1", 40), ("graph_2", None)):  # a CUDA graph launches several kernels
        kineto.launch(name, 150, 10, launched=launched, call="cudaGraphLaunch")
        kineto.events[-1]["args"]["correlation"] = kineto._correlation
    assert measure(kineto, tmp_path)["kernels"] == 5


def test_several_devices_are_added_and_their_streams_are_different(kineto, tmp_path):
    kineto.launch("sgemm_second", 27, 40, launched=12, device=1)
    time = measure(kineto, tmp_path)
    assert (time["devices"], time["busy_s"]) == (2, pytest.approx(60 * US))
    assert time["launch_latency_s"] == pytest.approx((5 + 15) / 2 * US)


@cases(
    case("launch", launched=50, host=[], copies=False, idle={"launch": 40}),
    case("queue", launched=20, host=[], copies=False, idle={"launch": 10, "other": 30}),
    case(
        "data",
        launched=50,
        host=[("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 25, 20)],
        copies=False,
        idle={"launch": 25, "data": 15},
    ),
    case(
        "synchronization",
        launched=50,
        host=[("cudaStreamSynchronize", 12, 20, "cuda_runtime")],
        copies=False,
        idle={"launch": 10, "sync": 30},
    ),
    case("copy", launched=50, host=[], copies=True, idle={"launch": 10, "copy": 30}),
)
def test_idle_time_is_divided_by_cause(kineto, tmp_path, launched, host, copies, idle):
    for event in host:
        kineto.host(*event)
    if copies:
        kineto.launch("Memcpy HtoD (Pinned -> Device)", 30, 30, launched=12, cat="gpu_memcpy")
    kineto.launch("next", 60, 40, launched=launched)
    time = measure(kineto, tmp_path)
    causes = {cause: round(time[f"idle_{cause}_s"] / US, 6) for cause in IDLE_CAUSES}
    assert {cause: idle_us for cause, idle_us in causes.items() if idle_us} == idle


def test_overlap_of_copies_and_communication_with_computation_and_its_precision(kineto, tmp_path):
    kineto.launch("Memcpy HtoD (Pinned -> Device)", 20, 20, launched=6, cat="gpu_memcpy", stream=9)
    kineto.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 25, 25, launched=8, stream=10)
    kineto.launch("volta_h884gemm_256x64", 60, 10, launched=9)
    expected_us = {"copy_s": 20, "copy_overlap_s": 10, "communication_s": 25, "communication_overlap_s": 5,
                   "computing_s": 30, "precision_fp32_s": 20, "tensor_core_s": 10}  # fmt: skip
    time = measure(kineto, tmp_path)
    assert {name: time[name] / US for name in expected_us} == pytest.approx(expected_us)
    assert "precision_unknown_s" not in time


def test_use_of_the_device_is_weighted_by_time(tmp_path):
    trace = Kineto()
    for add in (lambda: trace.host("aten::mm", 0, 10), lambda: trace.launch("a kernel without a duration", 0, 0)):
        add()
        assert measure(trace, tmp_path) == {}
    trace.launch("sgemm", 0, 30, **{"blocks per SM": 4, "est. achieved occupancy %": 50})
    trace.launch("hgemm", 30, 10, **{"blocks per SM": 0.2, "est. achieved occupancy %": 10})
    trace.launch("other", 40, 10)
    time = measure(trace, tmp_path)
    assert time["sm_efficiency"] == pytest.approx((30 * 1 + 10 * 0.2) / 40)
    assert time["achieved_occupancy"] == pytest.approx((30 * 0.5 + 10 * 0.1) / 40)
    assert "launch_latency_s" not in time


def test_launch_latency_excludes_queues_unknown_launches_and_disagreeing_clocks(kineto, tmp_path):
    kineto.launch("next", 60, 10, launched=50)
    kineto.launch("queued", 70, 5, launched=65)
    kineto.launch("Memcpy HtoD (Pageable -> Device)", 80, 8, launched=79, cat="gpu_memcpy")
    kineto.launch("after a copy", 88, 1, launched=81)
    kineto.launch("before its launch", 95, 1, launched=97)
    kineto.launch("without a launch", 95, 1, stream=8)
    assert measure(kineto, tmp_path)["launch_latency_s"] == pytest.approx((5 + 10) / 2 * US)
