"""Performance counters of GPUs, read by the real client libraries from stubs of NVML and amdsmi."""

import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from clocks import time_with

from epochmeter.machine import gpu_counters
from epochmeter.machine.amd import AmdCounters
from epochmeter.machine.gpu_counters import PROFILING_OPTION, GpuCounters, counter_ids
from epochmeter.machine.nvml import GPM

MEBIBYTE = 1 << 20


def metrics_of_a_window(counters):
    counters.mark()
    counters.mark()
    borders_ns = [at_ns for at_ns, _ in counters._marks][-2:]  # none after an error
    return counters.window(*borders_ns) if borders_ns else {}


@pytest.mark.timed
def test_counters_are_means_over_gpus_rates_are_sums_and_reading_takes_microseconds(nvml, monkeypatch):
    import pynvml

    monkeypatch.setenv("STUB", "hopper")
    with closing(GpuCounters(["GPU-aaaa", "GPU-bbbb"])) as counters:
        assert pynvml.nvmlLib.nvmlGpmOpenSamples() == 4
        first = metrics_of_a_window(counters)
        used_s = time.thread_time()
        assert [metrics_of_a_window(counters) for _ in range(100)] == [pytest.approx(first)] * 100
        assert (time.thread_time() - used_s) / 100 < 0.002, "0.2 % of an epoch of one second"
    assert (pynvml.nvmlLib.nvmlGpmOpenSamples(), counters.reason) == (0, "")
    assert first["gpu_sm_active_fraction"] == pytest.approx((2 + 3) / 2 / 100)
    assert first["gpu_dram_active_fraction"] == pytest.approx(0.105)
    assert first["gpu_pcie_sent_bytes_per_s"] == (20 + 21) * MEBIBYTE
    assert first["gpu_nvlink_received_bytes_per_s"] == (60 + 61) * MEBIBYTE
    assert GPM.keys() - first.keys() == {"gpu_nvlink_sent_bytes_per_s"}, "the GPUs lack this counter"


def test_missing_counters_have_a_reason(nvml, monkeypatch):
    for gpu, stub, why, remedy in (
        ("GPU-aaaa", "", "GPM of gpu0: the GPU is older than Hopper", "profiler=ncu"),
        ("GPU-bbbb", "hopper,mig", "GPM of gpu1: the run does not use a slice of this GPU in MIG mode", "=MIG-"),
        ("GPU-aaaa", "hopper,dcgm", "nvmlGpmSampleGet of gpu0: In use by another client", "dcgmi profile --pause"),
        ("GPU-aaaa", "hopper,root", "nvmlGpmSampleGet of gpu0: Insufficient Permissions", PROFILING_OPTION),
        ("GPU-aaaa", "silent", "nvmlInit of this machine: Driver Not Loaded", None),
        ("GPU-cccc", "hopper", "nvmlDeviceGetHandleByUUID of GPU-cccc: Not Found", None),
    ):
        monkeypatch.setenv("STUB", stub)
        with closing(GpuCounters([gpu])) as counters:
            assert metrics_of_a_window(counters) == {}
        assert counters.reason == why
        assert remedy in counters.remedy if remedy else not counters.remedy


def test_a_slice_has_its_own_counters(nvml, monkeypatch):
    monkeypatch.setenv("STUB", "hopper,mig")
    (slice_id,) = counter_ids([], {"CUDA_VISIBLE_DEVICES": "MIG-cccc,GPU-aaaa"})
    with closing(GpuCounters([slice_id])) as counters:
        assert metrics_of_a_window(counters)["gpu_sm_active_fraction"] == pytest.approx((2 + 70) / 100)
    assert counters.reason == ""
    gpus = [{"vendor": "nvidia", "uuid": "GPU-aaaa"}, {"vendor": "nvidia"}, {"vendor": "amd", "bus": "0000:c1:00.0"}]
    assert counter_ids(gpus, {"CUDA_VISIBLE_DEVICES": "0"}) == ["GPU-aaaa", "0000:c1:00.0"]


def test_counter_of_an_amd_gpu_that_is_not_reported_at_one_border_has_no_metric():
    counters = object.__new__(AmdCounters)
    borders = iter([{"xgmi_read_data_acc": [0, 0]}, {"xgmi_read_data_acc": "N/A"}])
    counters.call = lambda _: {**next(borders), "system_clock_counter": next(clock_ns), "gfx_activity_acc": 0}
    clock_ns = iter([0, 10**9])
    counters._last = counters.call("")
    assert counters.read() == {"gpu_gfx_active_fraction": 0.0}


def read_between(before, after):
    """The metrics of an AMD GPU between two readings, 2 s apart."""
    counters, borders = object.__new__(AmdCounters), iter([before, {**after, "system_clock_counter": 2 * 10**9}])
    counters.bus, counters.call = "0000:c1:00.0", lambda _: {"system_clock_counter": 0, **next(borders)}
    counters._last = counters.call("")
    return counters.read()


def test_counters_of_an_amd_gpu_wrap_around_after_50_days():
    """2,000 cycles of a millisecond, in which it computed for three quarters of the time."""
    before = {"accumulation_counter": 2**32 - 500, "gfx_activity_acc": 2**32 - 1000}
    after = {"accumulation_counter": 1500, "gfx_activity_acc": 149_000}
    assert read_between(before, after) == {"gpu_gfx_active_fraction": pytest.approx(0.75)}


def test_counters_of_an_amd_gpu_that_was_reset_have_no_metrics():
    before = {"accumulation_counter": 10**9, "gfx_activity_acc": 5 * 10**8, "xgmi_read_data_acc": [7]}
    after = {"accumulation_counter": 1500, "gfx_activity_acc": 149_000, "xgmi_read_data_acc": [9]}
    assert read_between(before, after) == {}


def test_traffic_of_a_link_that_was_reset_is_absent():
    links = {"xgmi_read_data_acc": ([4096, 10**9], [8192, 0]), "xgmi_write_data_acc": ([0, 0], [1024, 1024])}
    before, after = ({name: values[end] for name, values in links.items()} for end in range(2))
    activity = {"gfx_activity_acc": 0}
    assert read_between({**before, **activity}, {**after, **activity}) == {
        "gpu_gfx_active_fraction": 0.0, "gpu_xgmi_sent_bytes_per_s": 2048 * 1024 / 2,
    }  # fmt: skip


def test_metrics_of_a_window_over_several_readings_are_means_over_time(monkeypatch):
    values, times_s = iter([{}, {"x_fraction": 1.0}, {"x_fraction": 0.5}, {"x_fraction": 0.0}]), iter([0, 10, 14, 20])
    counters = GpuCounters()
    counters.gpus = [SimpleNamespace(read=lambda: next(values))]
    monkeypatch.setattr(gpu_counters, "time", time_with(monotonic_ns=lambda: next(times_s) * 10**9))
    for _ in range(4):
        counters.mark()
    assert counters.window(0, 14 * 10**9) == {"x_fraction": pytest.approx((10 * 1.0 + 4 * 0.5) / 14)}
    assert counters.window(10 * 10**9, 20 * 10**9) == {"x_fraction": pytest.approx(0.2)}
    assert counters.window(0, 12 * 10**9) == {}, "no reading near its end"
    counters.discard_before(14 * 10**9)
    assert counters.window(0, 14 * 10**9) == {}


AMD_METRICS = {
    "gpu_gfx_active_fraction": pytest.approx(0.75),
    "gpu_dram_active_fraction": pytest.approx(0.2),
    "gpu_xgmi_received_bytes_per_s": 4 * MEBIBYTE / 2,
    "gpu_xgmi_sent_bytes_per_s": 2 * MEBIBYTE / 2,
}


@pytest.mark.parametrize(
    ("stub", "bus", "why"),
    [
        ("", "0000:c1:00.0", ""),
        ("cycles", "0000:c1:00.0", ""),
        ("other", "0000:c1:00.0", "does not accumulate its utilization"),
        ("percent", "0000:c1:00.0", "gfx_activity_acc, mem_activity_acc have an unknown unit"),
        ("unsupported", "0000:c1:00.0", "AMDSMI_STATUS_NOT_SUPPORTED"),
        ("silent", "0000:c1:00.0", "AMDSMI_STATUS_DRIVER_NOT_LOADED"),
        ("", "0000:c6:00.0", "GPU 0000:c6:00.0: not known to ROCm"),
    ],
)
def test_firmware_of_amd_gpus_counts_utilization_and_traffic_or_has_a_reason(amd_smi, monkeypatch, stub, bus, why):
    monkeypatch.setenv("STUB", stub)
    with closing(GpuCounters([bus])) as counters:
        for _ in range(2):
            metrics = metrics_of_a_window(counters)
    assert metrics == ({} if why else AMD_METRICS)
    assert why in counters.reason
    assert bool(counters.reason) == bool(why)
