"""Calls of GPU drivers, recorded below the real clients from stubs of the drivers, and answered again."""

import json
import time
from contextlib import ExitStack, closing

import pytest
from controls import Board
from power.conftest import amd_smi, amd_smi_stub, nvml, nvml_stub, open_folder  # noqa: F401
from timed import mean_w, next_renewal

from epochmeter.machine import amd
from epochmeter.machine import nvml as client
from epochmeter.machine.amd import load_amdsmi
from epochmeter.machine.gpu_counters import GpuCounters
from epochmeter.machine.recorded.driver_calls import nvml_calls
from epochmeter.machine.recorded.identifiers import Identifiers
from epochmeter.machine.recorded.recorder import record_machine
from epochmeter.machine.recorded.root import use_machine
from epochmeter.machine.recorded.stand_ins import RecordedAmdSmi, RecordedNvml
from epochmeter.power.meters.amd import open_amd
from epochmeter.power.meters.nvml import open_nvml

METHODS = (
    *(
        "power_w",
        "instant_power_w",
        "module_power_w",
        "power_limit_w",
        "power_limit_range_w",
        "utilization",
        "clock_hz",
    ),
    *("memory_used_bytes", "temperature_c", "throttle_reasons", "is_in_mig_mode", "is_superchip"),
)
STUBS = ("", "ticks,instant,module", "unsupported", "nocounter,ga100", "superchip,oneboard", "mig", "throttled", "wsl")


@pytest.fixture(autouse=True)
def _own_drivers():
    yield
    use_machine("/")
    client.replace_client(None)
    amd.replace_client(None)


def recorded_nvml():
    with ExitStack() as opened:
        table, gpus = nvml_calls(opened, Identifiers({}))
        return json.loads(json.dumps({**table, "gpus": [{"calls": gpu.once} for gpu in gpus]}))


def answers():
    """What each method of each GPU returns, or the kind and the text of its error."""
    found = {"gpus": client.read_gpus()}
    with ExitStack() as opened:
        opened.callback(client.start())
        for index in range(client.client().nvmlDeviceGetCount()):
            gpu = client.NvmlGpu(client.client().nvmlDeviceGetHandleByIndex(index))
            for name in METHODS:
                try:
                    found[gpu.name, name] = getattr(gpu, name)()
                except OSError as error:
                    found[gpu.name, name] = (type(error), str(error))
    return found


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize("stub", STUBS)
def test_recorded_calls_have_the_results_and_errors_of_the_driver(monkeypatch, stub):
    monkeypatch.setenv("STUB", stub)
    live, table = answers(), recorded_nvml()
    client.replace_client(RecordedNvml(table, 1.0))
    assert answers() == live
    assert len(live) > 2 * len(METHODS)


@pytest.mark.usefixtures("nvml")
def test_driver_that_does_not_start_has_the_same_reason(monkeypatch):
    monkeypatch.setenv("STUB", "silent")
    with pytest.raises(OSError, match="Driver Not Loaded") as live:
        client.start()
    client.replace_client(RecordedNvml(recorded_nvml(), 1.0))
    with pytest.raises(OSError, match="Driver Not Loaded") as replayed:
        client.start()
    assert str(replayed.value) == str(live.value)


@pytest.mark.usefixtures("nvml")
def test_call_that_was_not_recorded_is_not_supported(monkeypatch):
    import pynvml

    replaced = RecordedNvml(recorded_nvml(), 1.0)
    client.replace_client(replaced)
    gpu = client.open_gpu("GPU-aaaa")
    for function, arguments in {
        "nvmlDeviceGetFanSpeed_v2": [0],
        "nvmlNotInvented": [],
        "nvmlDeviceGetClockInfo": [99],
    }.items():
        with pytest.raises(client.NotSupportedError):
            gpu.call(function, *arguments)
    with pytest.raises(client.NotSupportedError):
        gpu.set_power_limit_w(150)
    with pytest.raises(OSError, match="Not Found"):
        client.open_gpu("GPU-cccc")
    assert replaced.NVML_SUCCESS == pynvml.NVML_SUCCESS
    assert gpu.compute_processes() == []


@pytest.mark.usefixtures("nvml")
def test_other_processes_and_serial_numbers_are_not_in_the_table(monkeypatch):
    monkeypatch.setenv("STUB_PROCESSES", "4711:100")
    table = json.dumps(recorded_nvml())
    assert "4711" not in table
    calls = [gpu["calls"]["nvmlDeviceGetSerial()"]["result"] for gpu in recorded_nvml()["gpus"]]
    assert calls == ["serial1", "serial2"]
    monkeypatch.setenv("STUB", "oneboard")
    assert len({gpu["calls"]["nvmlDeviceGetSerial()"]["result"] for gpu in recorded_nvml()["gpus"]}) == 1


@pytest.mark.usefixtures("nvml")
@pytest.mark.parametrize(
    ("stub", "kind"), [("hopper", None), ("hopper,dcgm", "DCGM"), ("hopper,root", "administrator")]
)
def test_performance_counters_are_replayed(monkeypatch, tmp_path, stub, kind):
    monkeypatch.setenv("STUB", stub)

    def counted():
        with closing(GpuCounters(["GPU-aaaa"])) as counters:
            begun_ns = time.monotonic_ns()
            counters.mark()
            time.sleep(0.05)
            counters.mark()
            return counters.window(begun_ns, time.monotonic_ns()), counters.remedy

    live, live_remedy = counted()
    (root := tmp_path / "root/proc").mkdir(parents=True)
    (root / "cpuinfo").write_text("processor : 0\n")
    archive = tmp_path / "board.tar.gz"
    record_machine(archive, tmp_path / "root", 1.2, None, "no load")
    use_machine(archive)
    replayed, remedy = counted()
    assert replayed.keys() == live.keys()
    assert remedy == live_remedy
    if kind:
        assert kind in remedy
    else:
        assert replayed["gpu_sm_active_fraction"] == pytest.approx(live["gpu_sm_active_fraction"], rel=0.2)


@pytest.mark.timed
@pytest.mark.usefixtures("nvml")
def test_energy_of_a_recorded_gpu_is_that_of_its_counter(monkeypatch, tmp_path):
    monkeypatch.setenv("STUB", "ticks,instant")
    monkeypatch.setenv("STUB_W", "173")
    (root := tmp_path / "root/proc").mkdir(parents=True)
    (root / "cpuinfo").write_text("processor : 0\n")
    archive = tmp_path / "board.tar.gz"
    record_machine(archive, tmp_path / "root", 0.8, None, "no load")
    monkeypatch.setenv("STUB_W", "999")
    root = use_machine(archive)
    with closing(open_nvml(gpus=["GPU-aaaa"], root=root, period_s=0.02)) as meter:
        before = next_renewal(meter)
        time.sleep(1.6)
        watts = mean_w(meter, before, next_renewal(meter))[1]
    assert watts == pytest.approx({"gpu0": 173, "gpu0_sampled": 173}, rel=0.1), "through two repetitions"


@pytest.mark.usefixtures("amd_smi")
def test_recorded_calls_of_amdsmi_have_its_results_and_errors(monkeypatch, tmp_path):
    board = Board(tmp_path / "root").with_amdgpu("0000:c1:00.0", power1_average=90_000_000)
    for stub, error in {"working": "", "unsupported": "NOT_SUPPORTED", "silent": "NOT_LOADED", "still": ""}.items():
        monkeypatch.setenv("STUB", stub)
        load_amdsmi.cache_clear()
        archive = tmp_path / f"{stub}.tar.gz"
        record_machine(archive, board.root, 1.0, None, "no load")
        root = use_machine(archive)
        with closing(open_amd(gpus=["0000:c1:00.0"], root=root, period_s=0.02)) as meter:
            assert (stub, meter.energy["source"]) == (stub, "counter" if stub == "working" else "sampled")
            assert error in (meter.energy["reason"] or "")
            if stub == "working":
                before = next_renewal(meter)
                time.sleep(1.2)
                assert mean_w(meter, before, next_renewal(meter))[1]["gpu0"] == pytest.approx(90, rel=0.1)
        use_machine("/")


def test_damaged_tables_are_refused():
    energy = "nvmlDeviceGetTotalEnergyConsumption()"
    for gpu in (
        {},
        {"calls": {"x": 7}},
        {"calls": {"x": {}}},
        {"calls": {}, "series": {energy: {"times_s": [0], "values": [5]}}},
        {"calls": {}, "series": {energy: {"times_s": ["x"], "values": [{"result": 1}]}}},
    ):
        with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
            RecordedNvml({"gpus": [gpu]}, 1.0)
        with pytest.raises((ValueError, LookupError, TypeError, AttributeError)):
            RecordedAmdSmi({"gpus": {"0000:c1:00.0": gpu}}, 1.0)
