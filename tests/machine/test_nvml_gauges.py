"""NVML's gauges, read by the real client library from a stub of NVML."""

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
    "missing": {missing.quantity: missing.why for missing in gauges.unavailable()},
}, sys.stdout)
gauges.close()
"""


@pytest.fixture
def window(with_nvml):
    return lambda *gpus, stub="": json.loads(with_nvml(WINDOW, *gpus, stub=stub))


def test_gpus_used_have_utilization_clock_and_temperature(window):
    result = window("GPU-aaaa", "bbbb")
    assert result["metrics"] == {
        "gpu_utilization": 0.87,
        "gpu_clock_mean_hz": 1410e6,
        "temperature_max_c": 61,
        "power_capped_fraction": 0,
        "thermal_throttled_fraction": 0,
    }
    assert result["throttled"] == []


def test_power_capped_and_thermal_throttling_are_distinguished(window):
    result = window("GPU-bbbb", stub="throttled")
    assert result["throttled"] == ["gpu1 power-capped in 2 of 2 samples", "gpu1 thermal throttling in 2 of 2 samples"]
    assert (result["metrics"]["power_capped_fraction"], result["metrics"]["thermal_throttled_fraction"]) == (1, 1)
    capped = window("GPU-bbbb", stub="capped")["metrics"]
    assert (capped["power_capped_fraction"], capped["thermal_throttled_fraction"]) == (1, 0)


@pytest.mark.parametrize(
    ("gpu", "stub", "why"),
    [
        ("GPU-aaaa", "unsupported", "of gpu0: Not Supported"),
        ("GPU-aaaa", "silent", "cannot initialize NVML: Driver Not Loaded"),
        ("GPU-cccc", "", "of GPU-cccc: Not Found"),
    ],
)
def test_quantities_without_nvml_are_missing_with_the_reason(window, gpu, stub, why):
    result = window(gpu, stub=stub)
    assert result["metrics"] == {}
    assert all(result["missing"][quantity].endswith(why) for quantity in ("gpu_utilization", "gpu_clock_mean_hz"))
