"""Recordings in which one value has another type: each is refused, or shows no other number than the machine did."""

import copy
import json
from contextlib import closing, suppress
from pathlib import Path

import pytest
from recordings import GB300, H100

from epochmeter.machine import amd, jtop, nvml
from epochmeter.machine.recorded import archive
from epochmeter.machine.recorded.replay import Clock, read_documents
from epochmeter.power.meters.rails import open_jtop
from epochmeter.shared.problem import InputError, problem_of

OTHERS = (None, True, "x", -1, 1.5, float("nan"), 10**30, [], ["x"], {}, {"a": 1})
MISSING = object()
EXTRA = {
    "nvmlDeviceGetMigMode()": {"result": [0, 0]}, "nvmlDeviceGetMemoryInfo()": {"result": {"used": 5, "total": 9}},
    "nvmlDeviceGetSupportedMemoryClocks()": {"result": [2619, 1593]},
    "nvmlDeviceGetSupportedGraphicsClocks(2619)": {"result": [1980, 1965]},
    "nvmlDeviceGetComputeRunningProcesses()": {"result": []},
}  # fmt: skip
NVML = {
    "system": {"nvmlDeviceGetCount()": {"result": 1}, "nvmlSystemGetDriverVersion()": {"result": "580.65.06"}},
    "gpus": [{"calls": {**GB300[0]["calls"], **H100["calls"], **EXTRA}, "series": H100["series"]}],
}
NVML["gpus"][0]["series"] = {
    name: {key: values[:3] for key, values in of.items()} for name, of in H100["series"].items()
}
BUS = "0000:c1:00.0"
COUNT = {"energy_accumulator": 400, "counter_resolution": 15.3, "timestamp": 7}
AMDSMI = {"gpus": {BUS: {
    "calls": {
        "amdsmi_get_energy_count": {"result": COUNT},
        "amdsmi_get_gpu_metrics_info": {"result": {"gfx_activity_acc": 5, "system_clock_counter": 9, "xgmi": [1, 2]}},
    },
    "series": {"amdsmi_get_energy_count": {
        "times_s": [0, 0.5], "values": [{"result": COUNT}, {"result": {**COUNT, "energy_accumulator": 900}}],
    }},
}}}  # fmt: skip
WATTS = {"rail": {"CPU": {"power": 2000}}, "tot": {"name": "VDD_IN", "power": 6500}}
JTOP = {
    "calls": {
        "interval": {"result": 3600.0}, "uptime": {"result": 100.0}, "power": {"result": WATTS},
        "nvpmodel": {"result": {"id": 0, "name": "15W", "models": ["15W", "7W"], "status": [True, True]}},
    },
    "series": {"uptime": {"times_s": [0, 0.5], "values": [{"result": 100.0}, {"result": 100.5}]}},
}  # fmt: skip
MANIFEST = {
    "format": archive.FORMAT, "version": archive.VERSION, "entries": 1, "duration_s": 1.0, "architecture": "x86_64",
    "date": "2026-11-30", "epochmeter": "0.1.0", "missing": {"sys/y": "Permission denied"},
}  # fmt: skip
SERIES = {"files": {"sys/x": {"times_s": [0, 0.5], "values": ["1\n", None]}}}
DOCUMENTS = {
    archive.MANIFEST: MANIFEST, archive.SERIES: SERIES, archive.NVML: NVML, archive.AMDSMI: AMDSMI, archive.JTOP: JTOP,
}  # fmt: skip


class Still(Clock):
    """The time of the first sample."""

    def __call__(self):
        return 0.0


def places(value, place=()):
    """The places of all values in a nested one."""
    if isinstance(value, dict | list):
        for key, nested in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*place, key)
            yield from places(nested, (*place, key))


def changed(document, place, value):
    """The document with another value at a place, or without it."""
    copied = copy.deepcopy(document)
    parent = copied
    for key in place[:-1]:
        parent = parent[key]
    if value is MISSING:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return copied


def shown(replayed):
    """What this project reads of the recorded GPUs, and of the recording itself."""
    found = {"duration_s": replayed.recording.manifest["duration_s"], "origin": replayed.recording.origin}
    found["missing"] = replayed.recording.missing
    nvml.replace_client(replayed.nvml)
    amd.replace_client(replayed.amdsmi)
    found["gpus"] = [tuple(sorted(gpu.items())) for gpu in nvml.read_gpus()]
    readers = (
        *("energy_j", "power_w", "instant_power_w", "module_power_w", "power_limit_w", "power_limit_range_w"),
        *("utilization", "clock_hz", "memory_used_bytes", "temperature_c", "throttle_reasons", "compute_processes"),
        *("is_in_mig_mode", "is_superchip", "board_serial"),
    )
    with suppress(OSError):
        opened = nvml.open_gpu(H100["calls"]["nvmlDeviceGetUUID()"]["result"])
        for name in readers:
            with suppress(OSError):
                found[name] = getattr(opened, name)()
        for is_memory in (False, True):
            with suppress(OSError):
                found[f"clocks {is_memory}"] = opened.supported_clocks_mhz(is_memory=is_memory)
        with suppress(OSError):
            found["capability"] = opened.call("nvmlDeviceGetCudaComputeCapability")
    with suppress(OSError):
        count = amd.AmdSmiGpu(BUS).call("amdsmi_get_energy_count")
        ticks = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]
        found["amd_j"] = float(ticks * count["counter_resolution"])
    with suppress(OSError):
        found["amd counters"] = amd.AmdCounters(BUS).read()
    jtop.replace_client(replayed.jtop)
    with closing(open_jtop(gpus=[], root=Path("/"))) as meter:
        found["jtop"] = {name: instrument.read() for name, instrument in meter.instruments.items()}
        found["jtop periods"] = {name: domain.period_s for name, domain in meter.domains.items()}
    with suppress(AttributeError, OSError, RuntimeError), jtop.connect_client(0.5) as client:
        found["modes"] = {type(mode) for mode in client.nvpmodel.models}
    return found


@pytest.fixture
def replayed(tmp_path):
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/x").write_text("1\n")
    yield lambda documents: read_documents(
        "board.tar.gz", tmp_path, {name: json.dumps(content).encode() for name, content in documents.items()}, Still()
    )[0]
    nvml.replace_client(None)
    amd.replace_client(None)
    jtop.replace_client(None)


def is_of_its_type(before, value):
    """Whether another value is a right one as well, of which nobody can know that it is wrong."""
    if value is MISSING:
        return False
    is_number = isinstance(before, int | float) and not isinstance(before, bool)
    if is_number:
        return value == 1.5  # no whole number, which only some calls need
    is_text = isinstance(before, str) and isinstance(value, str)
    return is_text or (value in ({}, []) and type(value) is type(before))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_value_of_another_type_is_refused_or_not_shown(replayed, name):
    right = shown(replayed(DOCUMENTS))
    assert right["energy_j"] == 4_000_000.0
    assert right["instant_power_w"] == 412.5
    assert right["amd_j"] == pytest.approx(400 * 15.3)
    assert right["jtop"] == {"CPU": 2.0, "VDD_IN": 6.5}
    refused = 0
    for place in places(DOCUMENTS[name]):
        before = DOCUMENTS[name]
        for key in place:
            before = before[key]
        for value in (*OTHERS, *([MISSING] if isinstance(place[-1], str) else [])):
            is_watts = name == archive.JTOP and place[-1] == "power"
            if is_of_its_type(before, value) or (is_watts and value == -1):
                continue
            other = refusal = None
            try:
                other = replayed({**DOCUMENTS, name: changed(DOCUMENTS[name], place, value)})
            except InputError as error:
                refusal = problem_of(error)
            if other is None:
                assert refusal.hint, (place, value)
                refused += 1
                continue
            for key, result in shown(other).items():
                is_less = key in ("gpus", "origin", "missing", "is_superchip", "is_in_mig_mode", "amd counters")
                if key.startswith("jtop"):  # a rail may be absent
                    is_less = result.items() <= right[key].items()
                assert is_less or result == right[key], (name, place, value, key)
    assert refused > 20
