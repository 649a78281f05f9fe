"""Energy of NVIDIA GPUs, read by the real client library from a stub of NVML."""

import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from cases import case, cases
from timed import after_samples, mean_w, next_renewal

from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meters import nvml as nvml_meter
from epochmeter.power.meters.gpu import GpuInstruments, gpu_meter
from epochmeter.power.meters.nvml import SLICE_REASON, open_nvml
from epochmeter.power.uncertainty import UNKNOWN, Response
from epochmeter.power.window_energy import energy_of_window

A100 = {"averaging_s": 0.025, "renewal_s": 0.1}
TABLE = {"8.0": A100}
OWN = {**TABLE, "8.0 counter": {"averaging_s": 0.1, "lag_s": 0.02}}
MEAN, SAME, UNLISTED = Response(1.0, 0.0, 0.1), Response(**A100), Response(None, 0.0, 0.1)
BOARD, MODULE = "GPU board", "module (GPU and CPU of a superchip)"
MODULES = "modules of the GPUs used (GPU and CPU of a superchip)"


@pytest.fixture
def opened(nvml, monkeypatch):
    """Function of (GPUs, options): open a meter; the one before it is closed."""
    with ExitStack() as meters:

        def make(*gpus, stub="", **options):
            meters.close()
            monkeypatch.setenv("STUB", stub)
            monkeypatch.setattr(nvml_meter, "SCOPE_CHECK_S", 0.2)
            return meters.enter_context(closing(open_nvml(gpus=gpus, root=Path("/"), **options)))

        yield make


def test_window_energy_is_the_counter_difference_of_the_gpu_used(opened):
    meter = opened("GPU-bbbb", cross_check=False)
    covers = {"covers": "GPUs used (whole boards)", "domains": ["gpu1"]}
    assert meter.energy == {"source": "counter", **covers, "reason": None, "limit_w": 300.0}
    assert meter.domains == {"gpu1": Domain("counter", 0.1, BOARD, 0.001, UNLISTED, 300.0)}
    before, after = meter.read(), meter.read()
    assert meter.total(after) - meter.total(before) == 25.0


@cases(
    case("mean power", stub="", sensors=TABLE, counter=(BOARD, UNLISTED), check=(BOARD, MEAN)),
    case(
        "GA100: the counter adds up sampled power",
        stub="ga100",
        sensors=TABLE,
        counter=(BOARD, SAME),
        check=(BOARD, SAME),
    ),
    case("listed counter", stub="ga100", sensors=OWN, counter=(BOARD, Response(0.1, 0.02, 0.1)), check=(BOARD, SAME)),
    case("instantaneous power", stub="instant", sensors=TABLE, counter=(BOARD, UNLISTED), check=(BOARD, UNKNOWN)),
    case("GH200", stub="superchip,fast,module,total", sensors={}, counter=(MODULE, UNLISTED), check=(MODULE, UNKNOWN)),
    case("GB10", stub="superchip,fast,instant", sensors={}, counter=(BOARD, UNLISTED), check=(BOARD, UNKNOWN)),
    case("GB300", stub="superchip,fast,instant,module", sensors={}, counter=(BOARD, UNLISTED), check=(BOARD, UNKNOWN)),
    case(
        "only the module's power is known",
        stub="fast,module",
        sensors={},
        counter=(BOARD, UNLISTED),
        check=(MODULE, UNKNOWN),
    ),
    case(
        "only the GPU's mean power is known",
        stub="gh200,fast",
        sensors={},
        counter=(BOARD, UNLISTED),
        check=(BOARD, MEAN),
    ),
)
def test_scope_and_response_are_those_of_the_gpu_and_of_the_device_table(opened, stub, sensors, counter, check):
    meter = opened("GPU-bbbb", stub=stub, sensors=sensors)

    def limit_w(scope):
        return 300.0 if scope == BOARD else None  # NVML's limits are of the board

    assert meter.domains == {
        "gpu1": Domain("counter", 0.1, counter[0], 0.001, counter[1], limit_w(counter[0])),
        "gpu1_sampled": Domain(
            "sampled", 0.05, f"{check[0]}, sampled as a cross-check", 0.001, check[1], limit_w(check[0])
        ),
    }
    assert meter.energy["covers"] == (MODULES if counter[0] == MODULE else "GPUs used (whole boards)")


@pytest.mark.timed
@cases(
    case(
        "GPUs",
        stub="nocounter,instant,module,oneboard",
        domains=["gpu0", "gpu1"],
        covers="GPUs used (whole boards)",
        watts=400,
    ),
    case(
        "GPUs whose counters are of their module",
        stub="fast,instant,module,total,oneboard",
        domains=["gpu0", "gpu1"],
        covers="GPUs used (whole boards)",
        watts=400,
    ),
    case("one module", stub="nocounter,module,oneboard", domains=["gpu0"], covers=MODULES, watts=500),
    case("counter of one module", stub="fast,module,total,oneboard", domains=["gpu0"], covers=MODULES, watts=500),
    case("two modules", stub="nocounter,module", domains=["gpu0", "gpu1"], covers=MODULES, watts=1000),
)
def test_power_of_a_superchip_is_that_of_the_gpus_used_or_of_each_module_once(opened, stub, domains, covers, watts):
    """NVML reports 200 W of each GPU, and 500 W of the module, which two GPUs may share."""
    meter = opened("GPU-aaaa", "GPU-bbbb", stub=f"superchip,{stub}", period_s=0.02)
    assert (meter.energy["domains"], meter.energy["covers"]) == (domains, covers)
    assert ("gpu1 is on a module that is counted once." in (meter.energy["reason"] or "")) == ("gpu1" not in domains)
    before = next_renewal(meter)
    time.sleep(0.4)
    assert mean_w(meter, before, next_renewal(meter))[0] == pytest.approx(watts, rel=0.1)


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        ("instant,module,total", " W, NVML reports 200 W of the GPU board and 500 W of the module"),
        ("gh200,total", " W, NVML reports 200 W of the GPU board"),
        ("gh200,nopower", "no power"),
    ],
)
def test_counter_of_a_superchip_is_not_used_unless_it_counts_the_reported_power(opened, stub, reason):
    meter = opened("GPU-aaaa", stub=f"fast,{stub}", cross_check=False)
    assert meter.energy["source"] == ("none" if "nopower" in stub else "sampled")
    assert reason in meter.energy["reason"]


@pytest.mark.timed
@pytest.mark.parametrize(
    ("stub", "source", "watts"),
    [
        (
            "ticks,instant",
            "counter",
            {"gpu0": pytest.approx(200, rel=0.02), "gpu0_sampled": pytest.approx(200, rel=0.01)},
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
    before = next_renewal(meter)
    time.sleep(0.6)
    after = after_samples(meter, before, 10)
    assert mean_w(meter, before, after)[1] == watts


@pytest.mark.timed
@pytest.mark.parametrize(
    ("stub", "differences_w"),
    [("instant", []), ("superchip,module,total", []), ("instant,total", [300, 300])],
    ids=["GPU", "GH200", "counter of another scope"],
)
def test_counter_is_compared_with_the_sampled_power_of_the_same_gpu(opened, stub, differences_w):
    meter = opened("GPU-aaaa", "GPU-bbbb", stub=f"fast,{stub}", period_s=0.02)
    before = next_renewal(meter)
    time.sleep(0.5)
    after = after_samples(meter, before, 10)
    seconds = (after.at_ns - before.at_ns) * 1e-9
    found = energy_of_window(before, after, meter, seconds).disagreements
    assert [one.difference_j / seconds for one in found] == pytest.approx(differences_w, rel=0.1)


@pytest.mark.parametrize(
    ("sampled", "counted", "check"),
    [
        (BOARD, BOARD, (("gpu0_sampled",), "equal to", ("gpu0",))),
        (BOARD, MODULE, (("gpu0_sampled",), "at most", ("gpu0",))),
        (MODULE, BOARD, (("gpu0",), "at most", ("gpu0_sampled",))),
    ],
)
def test_power_of_a_gpu_is_at_most_that_of_its_module(sampled, counted, check):
    counter, power = (Instrument(Domain("counter", 0.1, covers), float) for covers in (counted, sampled))
    gpu = GpuInstruments("gpu0", counter, power._replace(domain=power.domain._replace(source="sampled")), None)
    with closing(gpu_meter([gpu], period_s=10.0, cross_check=True)) as meter:
        assert meter.cross_checks == (check,)


@pytest.mark.parametrize(("stub", "waits"), [("ticks,instant", False), ("nocounter,instant", True)])
def test_border_waits_for_delayed_readings_only_if_they_count(opened, monkeypatch, stub, waits):
    meter, pauses_s = opened("GPU-aaaa", stub=stub), []
    monkeypatch.setattr(time, "sleep", pauses_s.append)
    now_ns = time.monotonic_ns()
    meter.sampling(now_ns - 1000, now_ns)
    assert bool(pauses_s) == waits


@pytest.mark.timed
@pytest.mark.parametrize("is_selected", [False, True], ids=["by its UUID", "by CUDA_VISIBLE_DEVICES"])
def test_slice_has_an_energy_only_if_the_driver_attributes_one_to_it(opened, monkeypatch, is_selected):
    if is_selected:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-cccc")
    gpus = [] if is_selected else ["MIG-cccc"]
    meter = opened(*gpus, stub="mig,ticks,sliced")
    assert (meter.energy["source"], meter.domains["gpu0"].covers) == ("counter", "MIG slice of a GPU")
    before = next_renewal(meter)
    time.sleep(1.0)
    after = next_renewal(meter)
    used = energy_of_window(before, after, meter, (after.at_ns - before.at_ns) / 1e9)
    assert used.metrics["power_mean_w"] == pytest.approx(0.4 * 200, rel=0.2)
    for stub in ("mig,ticks", "mig,ticks,whole", "mig,silent", "mig,unsupported"):
        absent = opened(*gpus, stub=stub).energy
        assert absent["source"] == "none"
        assert absent["codes"] == ["no_sensor" if "silent" in stub and gpus else "partitioned_gpu"]


def test_energy_is_absent_unless_every_gpu_has_an_instrument(opened):
    for gpus, stub, reason in (
        (["GPU-aaaa"], "unsupported", "nvmlDeviceGetPowerUsage of gpu0: Not Supported"),
        (["GPU-aaaa"], "zero,nopower", "the energy counter of gpu0 is 0; "),
        (["GPU-aaaa"], "silent", "Driver Not Loaded"),
        (["GPU-aaaa", "GPU-cccc"], "", "nvmlDeviceGetHandleByUUID of GPU-cccc: Not Found"),
        (["MIG-aaaa"], "", f"MIG-aaaa: {SLICE_REASON}"),
        (["GPU-bbbb"], "mig", f"gpu1 is in MIG mode: {SLICE_REASON}"),
        (["GPU-aaaa", "GPU-bbbb"], "nocounter,module,noserial", "gpu0, gpu1 may be on the same module"),
        ([], "", "no GPU with a known UUID"),
    ):
        meter = opened(*gpus, stub=stub)
        assert reason in meter.energy["reason"]
        assert (meter.energy["source"], meter.domains) == ("none", {})
