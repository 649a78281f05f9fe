"""Energy of NVIDIA GPUs, read by the real client library from a stub of NVML."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from epochmeter.power.meters.nvml import SLICE_REASON, open_nvml
from epochmeter.power.uncertainty import UNKNOWN, Response

A100 = {"averaging_s": 0.025, "renewal_s": 0.1}
TABLE = {"8.0": A100}
OWN = {**TABLE, "8.0 counter": {"averaging_s": 0.1, "lag_s": 0.02}}
MEAN, SAME, UNLISTED = Response(1.0, 0.0, 0.1), Response(**A100), Response(None, 0.0, 0.1)
BOARD, MODULE = "GPU board", "module (GPU and CPU of a superchip)"


@pytest.fixture
def opened(nvml, monkeypatch):
    """Function of (GPUs, options): open a meter; the one before it is closed."""
    with ExitStack() as meters:

        def make(*gpus, stub="", **options):
            meters.close()
            monkeypatch.setenv("STUB", stub)
            return meters.enter_context(closing(open_nvml(gpus=gpus, root=Path("/"), **options)))

        yield make


def test_window_energy_is_the_counter_difference_of_the_gpu_used(opened):
    meter = opened("GPU-bbbb", cross_check=False)
    covers = {"covers": "GPUs used (whole boards)", "domains": ["gpu1"]}
    assert meter.energy == {"source": "counter", **covers, "reason": None}
    assert meter.domains == {"gpu1": ("counter", 0.1, BOARD, 0.001, UNLISTED)}
    before, after = meter.read(), meter.read()
    assert meter.total(after) - meter.total(before) == 25.0


@pytest.mark.parametrize(
    ("stub", "sensors", "counter", "check"),
    [
        pytest.param("", TABLE, (BOARD, UNLISTED), (BOARD, MEAN), id="mean power"),
        pytest.param("ga100", TABLE, (BOARD, SAME), (BOARD, SAME), id="GA100: the counter adds up sampled power"),
        pytest.param("ga100", OWN, (BOARD, Response(0.1, 0.02, 0.1)), (BOARD, SAME), id="listed counter"),
        pytest.param("instant", TABLE, (BOARD, UNLISTED), (BOARD, UNKNOWN), id="instantaneous power"),
        pytest.param("superchip,instant", {}, (MODULE, UNLISTED), (MODULE, UNKNOWN), id="superchip by its link"),
        pytest.param("gh200,instant", {}, (MODULE, UNLISTED), (MODULE, UNKNOWN), id="superchip by its name"),
        pytest.param("superchip", {}, (MODULE, UNLISTED), (BOARD, MEAN), id="its mean power does not include the CPU"),
    ],
)
def test_scope_and_response_are_those_of_the_gpu_and_of_the_device_table(opened, stub, sensors, counter, check):
    meter = opened("GPU-bbbb", stub=stub, sensors=sensors)
    assert meter.domains == {
        "gpu1": ("counter", 0.1, counter[0], 0.001, counter[1]),
        "gpu1_sampled": ("sampled", 0.05, f"{check[0]}, sampled as a cross-check", 0.001, check[1]),
    }
    modules = "modules of the GPUs used (GPU and CPU of a superchip)"
    assert meter.energy["covers"] == (modules if counter[0] == MODULE else "GPUs used (whole boards)")


@pytest.mark.parametrize(
    ("stub", "source", "watts"),
    [
        (
            "ticks,instant",
            "counter",
            {"gpu0": pytest.approx(200, rel=0.1), "gpu0_sampled": pytest.approx(200, rel=0.01)},
        ),
        ("nocounter,ga100", "sampled", {"gpu0": pytest.approx(200, rel=0.01)}),
    ],
)
def test_sampled_power_is_a_cross_check_or_the_total_if_there_is_no_counter(opened, stub, source, watts):
    meter = opened("GPU-aaaa", stub=stub, period_s=0.02)
    assert {domain.period_s for domain in meter.domains.values()} == ({0.02, 0.1} if source == "counter" else {0.02})
    assert (meter.energy["source"], meter.energy["domains"]) == (source, ["gpu0"])
    missing = "Not Supported; its power is sampled instead."
    assert meter.energy["reason"] is None if source == "counter" else meter.energy["reason"].endswith(missing)
    before, opened_ns = meter.read(), time.monotonic_ns()
    time.sleep(1)
    after, closed_ns = meter.read(), time.monotonic_ns()
    assert meter.sampling(opened_ns, closed_ns).samples >= 10
    assert {name: (after[name] - before[name]) * 1e9 / (closed_ns - opened_ns) for name in before} == watts


@pytest.mark.parametrize(("stub", "waits"), [("ticks,instant", False), ("nocounter,instant", True)])
def test_border_waits_for_delayed_readings_only_if_they_count(opened, monkeypatch, stub, waits):
    meter, pauses_s = opened("GPU-aaaa", stub=stub), []
    monkeypatch.setattr(time, "sleep", pauses_s.append)
    now_ns = time.monotonic_ns()
    meter.sampling(now_ns - 1000, now_ns)
    assert bool(pauses_s) == waits


def test_energy_is_absent_unless_every_gpu_has_an_instrument(opened):
    for gpus, stub, reason in (
        (["GPU-aaaa"], "unsupported", "nvmlDeviceGetPowerUsage of gpu0: Not Supported."),
        (["GPU-aaaa"], "zero,nopower", "the energy counter of gpu0 is 0; "),
        (["GPU-aaaa"], "silent", "Driver Not Loaded."),
        (["GPU-aaaa", "GPU-cccc"], "", "nvmlDeviceGetHandleByUUID of GPU-cccc: Not Found."),
        (["MIG-aaaa"], "", f"MIG-aaaa: {SLICE_REASON}."),
        (["GPU-bbbb"], "mig", f"gpu1 is in MIG mode: {SLICE_REASON}."),
        ([], "", "no GPU with a known UUID"),
    ):
        meter = opened(*gpus, stub=stub)
        assert reason in meter.energy["reason"]
        assert (meter.energy["source"], meter.domains) == ("none", {})
