"""NVML's gauges, read by the real client library from a stub of the driver's."""

import json

import pytest

WINDOW = """
import json, sys, time
from epochmeter.machine.utilization import open_gauges
gauges = open_gauges(gpus=sys.argv[1:], root="/nowhere")
gauges.mark()
opened_ns = time.monotonic_ns()
gauges.mark()
closed_ns = time.monotonic_ns()
gauges.mark()
json.dump({
    "metrics": gauges.window(opened_ns, closed_ns),
    "throttled": gauges.throttled(opened_ns, closed_ns),
    "missing": {missing.quantity: missing.why for missing in gauges.missing()},
}, sys.stdout)
gauges.close()
"""


@pytest.fixture
def window(with_nvml):
    return lambda *gpus, stub="": json.loads(with_nvml(WINDOW, *gpus, stub=stub))


def test_the_gpus_used_tell_their_load_clock_and_temperature(window):
    told = window("GPU-aaaa", "bbbb")
    assert told["metrics"] == {
        "gpu_utilization": 0.87,
        "gpu_clock_mean_hz": 1410e6,
        "temperature_max_c": 61,
        "power_capped_fraction": 0,
        "thermal_throttled_fraction": 0,
    }
    assert told["throttled"] == []


def test_a_gpu_at_its_power_limit_is_told_from_one_that_is_hot(window):
    told = window("GPU-bbbb", stub="throttled")
    assert told["throttled"] == ["gpu1 at its power limit in 2 of 2 samples", "gpu1 slowed for heat in 2 of 2 samples"]
    assert (told["metrics"]["power_capped_fraction"], told["metrics"]["thermal_throttled_fraction"]) == (1, 1)
    capped = window("GPU-bbbb", stub="capped")["metrics"]
    assert (capped["power_capped_fraction"], capped["thermal_throttled_fraction"]) == (1, 0)


@pytest.mark.parametrize(
    ("gpu", "stub", "why"),
    [
        ("GPU-aaaa", "unsupported", "NVML does not report it for gpu0: Not Supported."),
        ("GPU-aaaa", "silent", "NVML does not start: Driver Not Loaded. It comes with NVIDIA's driver."),
        ("GPU-cccc", "", "NVML does not report it for GPU-cccc: Not Found."),
    ],
)
def test_what_nvml_does_not_tell_is_missing_with_the_reason(window, gpu, stub, why):
    told = window(gpu, stub=stub)
    assert told["metrics"] == {}
    assert told["missing"]["gpu_utilization"] == told["missing"]["gpu_clock_mean_hz"] == why
