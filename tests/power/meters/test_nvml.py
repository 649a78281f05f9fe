import json

import pytest

from epochmeter.power.meters.nvml import SLICE_REASON

UNKNOWN = [None, 0.0, None]

OPEN = """
import json, logging, sys, time
from epochmeter.power.meter import open_meter

logging.disable()
spec = {"name": "nvml", "_target_": "epochmeter.power.meters.nvml.open_nvml", **json.loads(sys.argv[1])}
meter = open_meter(spec, gpus=sys.argv[2:])
"""

WINDOW = f"""
{OPEN}
before, after = meter.read(), meter.read()
joules = {{name: after[name] - before[name] for name in before.keys() & after.keys()}}
print(json.dumps({{"energy": meter.energy, "domains": meter.domains, "joules": joules, "total": meter.total(joules)}}))
"""

SECOND = f"""
{OPEN}
before, opened_ns = meter.read(), time.monotonic_ns()
time.sleep(1)
after, closed_ns = meter.read(), time.monotonic_ns()
sampling = meter.sampling(opened_ns, closed_ns)
watts = {{name: (after[name] - before[name]) * 1e9 / (closed_ns - opened_ns) for name in before.keys() & after.keys()}}
meter.close()
time.sleep(0.1)
print(json.dumps({{"watts": watts, "lost": sampling.unavailable, "samples": sampling.samples}}))
"""


@pytest.fixture
def window_of(with_nvml):
    """Function of (GPUs, options): the window between a meter's first two readings."""
    return lambda *gpus, stub="", **options: json.loads(with_nvml(WINDOW, json.dumps(options), *gpus, stub=stub))


@pytest.fixture
def second_of(with_nvml):
    """Function of (GPUs, options): a window of one second at 200 W."""
    return lambda *gpus, stub, **options: json.loads(with_nvml(SECOND, json.dumps(options), *gpus, stub=stub))


def test_window_energy_is_the_counter_difference_of_the_gpu_used(window_of):
    window = window_of("GPU-bbbb", cross_check=False)
    covers = {"covers": "GPUs used (whole boards)", "domains": ["gpu1"]}
    assert window["energy"] == {"source": "counter", **covers, "reason": None}
    assert window["domains"] == {"gpu1": ["counter", 0.1, "GPU board", 0.001, None, 0.0, 0.0]}
    assert window["joules"] == {"gpu1": 25.0}
    assert window["total"] == 25.0


@pytest.mark.parametrize("stub", ["superchip,instant", "gh200,instant"])
def test_energy_of_a_superchip_covers_its_module(window_of, stub):
    window = window_of("GPU-bbbb", stub=stub)
    assert window["energy"]["covers"] == "modules of the GPUs used (GPU and CPU of a superchip)"
    module = "module (GPU and CPU of a superchip)"
    assert window["domains"]["gpu1"][2] == module
    assert window["domains"]["gpu1_sampled"][2].startswith(module)
    usual = window_of("GPU-bbbb", stub="superchip")["domains"]["gpu1_sampled"]
    assert usual[2].startswith("GPU board"), "the mean power does not include the CPU"


def test_cross_check_is_not_part_of_the_total(second_of, window_of):
    window = window_of("GPU-aaaa", stub="instant", period_s=0.02)
    assert window["energy"]["source"] == "counter"
    assert window["domains"]["gpu0_sampled"] == [
        "sampled",
        0.02,
        "GPU board, sampled as a cross-check",
        0.001,
        *UNKNOWN,
    ]
    assert window["total"] == 12.5
    watts = second_of("GPU-aaaa", stub="ticks,instant")["watts"]
    assert watts["gpu0_sampled"] == pytest.approx(200, rel=0.01)
    assert watts["gpu0"] == pytest.approx(200, rel=0.1)


def test_sampled_power_is_the_total_if_there_is_no_counter(second_of, window_of):
    window = window_of("GPU-aaaa", stub="nocounter,ga100")
    assert window["domains"] == {"gpu0": ["sampled", 0.05, "GPU board", 0.001, *UNKNOWN]}
    assert window["energy"]["source"] == "sampled"
    assert window["energy"]["reason"].endswith("Not Supported. Its power is sampled instead.")
    second = second_of("GPU-aaaa", stub="nocounter", cross_check=False)
    assert second["watts"] == {"gpu0": pytest.approx(200, rel=0.01)}
    assert second["samples"] >= 10


@pytest.mark.parametrize(
    ("stub", "response"),
    [("", [1.0, 0.0, 0.1]), ("ga100", [0.025, 0.0, 0.1]), ("instant", UNKNOWN)],
    ids=["mean", "GA100", "instantaneous"],
)
def test_mean_power_has_a_response_of_one_second_and_instantaneous_power_that_of_the_device_table(
    window_of, stub, response
):
    sensors = {"8.0": {"averaging_s": 0.025, "renewal_s": 0.1}}
    domains = window_of("GPU-aaaa", stub=stub, sensors=sensors)["domains"]
    assert domains["gpu0_sampled"][4:] == response
    assert domains["gpu0"][4] == (0.025 if stub == "ga100" else None), "the counter adds up the same sensor's readings"


def test_counter_has_its_own_response_if_the_device_table_lists_one(window_of):
    sensors = {"8.0": {"averaging_s": 0.025, "renewal_s": 0.1}, "8.0 counter": {"averaging_s": 0.1, "lag_s": 0.02}}
    domains = window_of("GPU-aaaa", stub="ga100", sensors=sensors)["domains"]
    assert domains["gpu0"][4:6] == [0.1, 0.02]
    assert domains["gpu0_sampled"][4:] == [0.025, 0.0, 0.1]


@pytest.mark.parametrize(
    ("gpus", "stub", "reason"),
    [
        (["GPU-aaaa"], "unsupported", "nvmlDeviceGetPowerUsage of gpu0: Not Supported."),
        (["GPU-aaaa"], "zero,nopower", "the energy counter of gpu0 is 0."),
        (["GPU-aaaa"], "silent", "Driver Not Loaded."),
        (["GPU-aaaa", "GPU-cccc"], "", "nvmlDeviceGetHandleByUUID of GPU-cccc: Not Found."),
        (["MIG-aaaa"], "", f"MIG-aaaa: {SLICE_REASON}."),
        (["GPU-bbbb"], "mig", f"gpu1 is in MIG mode: {SLICE_REASON}."),
        ([], "", "no GPU with a known UUID"),
    ],
)
def test_energy_is_absent_unless_every_gpu_has_an_instrument(window_of, gpus, stub, reason):
    window = window_of(*gpus, stub=stub)
    assert reason in window["energy"].pop("reason")
    assert window["energy"] == {"source": "none", "covers": None, "domains": []}
    assert window["joules"] == {}
