"""Energy of NVIDIA GPUs, read by the real client library from a stub of NVML."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from epochmeter.power.meters.nvml import SLICE_REASON, open_nvml
from epochmeter.power.uncertainty import UNKNOWN, Response

A100, OWN = {"averaging_s": 0.025, "renewal_s": 0.1}, {"averaging_s": 0.1, "lag_s": 0.02}


@pytest.fixture
def opened(nvml, monkeypatch):
    """Function of (GPUs, options): open a meter; the one before it is closed."""
    with ExitStack() as meters:

        def make(*gpus, stub="", **options):
            meters.close()
            monkeypatch.setenv("STUB", stub)
            return meters.enter_context(closing(open_nvml(gpus=gpus, root=Path("/"), **options)))

        yield make


def watts_of_a_second(meter):
    before, opened_ns = meter.read(), time.monotonic_ns()
    time.sleep(1)
    after, closed_ns = meter.read(), time.monotonic_ns()
    assert meter.sampling(opened_ns, closed_ns).samples >= 10
    return {name: (after[name] - before[name]) * 1e9 / (closed_ns - opened_ns) for name in before}


def test_window_energy_is_the_counter_difference_of_the_gpu_used(opened):
    meter = opened("GPU-bbbb", cross_check=False)
    covers = {"covers": "GPUs used (whole boards)", "domains": ["gpu1"]}
    assert meter.energy == {"source": "counter", **covers, "reason": None}
    assert meter.domains == {"gpu1": ("counter", 0.1, "GPU board", 0.001, Response(None, 0.0, 0.1))}
    before, after = meter.read(), meter.read()
    assert meter.total(after) - meter.total(before) == 25.0


@pytest.mark.parametrize("stub", ["superchip,instant", "gh200,instant"])
def test_energy_of_a_superchip_covers_its_module(opened, stub):
    meter = opened("GPU-bbbb", stub=stub)
    assert meter.energy["covers"] == "modules of the GPUs used (GPU and CPU of a superchip)"
    module = "module (GPU and CPU of a superchip)"
    assert meter.domains["gpu1"].covers == module
    assert meter.domains["gpu1_sampled"].covers.startswith(module)
    usual = opened("GPU-bbbb", stub="superchip").domains["gpu1_sampled"]
    assert usual.covers.startswith("GPU board"), "the mean power does not include the CPU"


def test_cross_check_is_not_part_of_the_total(opened):
    meter = opened("GPU-aaaa", stub="ticks,instant", period_s=0.02)
    covers = "GPU board, sampled as a cross-check"
    assert meter.domains["gpu0_sampled"] == ("sampled", 0.02, covers, 0.001, UNKNOWN)
    assert (meter.energy["source"], meter.energy["domains"]) == ("counter", ["gpu0"])
    watts = watts_of_a_second(meter)
    assert watts["gpu0_sampled"] == pytest.approx(200, rel=0.01)
    assert watts["gpu0"] == pytest.approx(200, rel=0.1)


@pytest.mark.parametrize(("stub", "waits"), [("ticks,instant", False), ("nocounter,instant", True)])
def test_border_waits_for_delayed_readings_only_if_they_count(opened, monkeypatch, stub, waits):
    meter, pauses_s = opened("GPU-aaaa", stub=stub), []
    monkeypatch.setattr(time, "sleep", pauses_s.append)
    now_ns = time.monotonic_ns()
    meter.sampling(now_ns - 1000, now_ns)
    assert bool(pauses_s) == waits


def test_sampled_power_is_the_total_if_there_is_no_counter(opened):
    meter = opened("GPU-aaaa", stub="nocounter,ga100", cross_check=False)
    assert meter.domains == {"gpu0": ("sampled", 0.05, "GPU board", 0.001, UNKNOWN)}
    assert meter.energy["source"] == "sampled"
    assert meter.energy["reason"].endswith("Not Supported. Its power is sampled instead.")
    assert watts_of_a_second(meter) == {"gpu0": pytest.approx(200, rel=0.01)}


@pytest.mark.parametrize(
    ("stub", "own", "sampled", "counter"),
    [
        ("", {}, Response(1.0, 0.0, 0.1), Response(None, 0.0, 0.1)),
        ("ga100", {}, Response(**A100), Response(**A100)),
        ("instant", {}, UNKNOWN, Response(None, 0.0, 0.1)),
        ("ga100", OWN, Response(**A100), Response(0.1, 0.02, 0.1)),
    ],
    ids=["mean", "GA100", "instantaneous", "own"],
)
def test_counter_adds_up_sampled_power_unless_the_device_table_lists_its_own_response(
    opened, stub, own, sampled, counter
):
    table = {"8.0": A100, **({"8.0 counter": own} if own else {})}
    domains = opened("GPU-aaaa", stub=stub, sensors=table).domains
    assert (domains["gpu0_sampled"].response, domains["gpu0"].response) == (sampled, counter)


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
def test_energy_is_absent_unless_every_gpu_has_an_instrument(opened, gpus, stub, reason):
    meter = opened(*gpus, stub=stub)
    assert reason in meter.energy["reason"]
    assert (meter.energy["source"], meter.domains) == ("none", {})


def test_gpu_that_is_lost_during_a_run_has_no_energy_and_the_reason(opened, monkeypatch):
    meter = opened("GPU-aaaa", stub="ticks")
    before, opened_ns = meter.read(), time.monotonic_ns()
    monkeypatch.setenv("STUB", "unsupported")
    time.sleep(1)
    assert (before.keys(), meter.read()) == ({"gpu0", "gpu0_sampled"}, {})
    assert "Not Supported" in meter.sampling(opened_ns, time.monotonic_ns()).unavailable["gpu0_sampled"]
