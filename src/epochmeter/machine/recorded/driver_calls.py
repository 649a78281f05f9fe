"""Calls of GPU drivers as tables: which are recorded, and how their results and errors become values of JSON.

A table has, for each GPU, the outcome of each call by its name and arguments: `{"result": ...}`, or `{"error": ...}`
with NVML's code or amdsmi's text.
"""

import ctypes
import enum
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from epochmeter.machine import amd, nvml
from epochmeter.machine.recorded.identifiers import SERIAL, Identifiers
from epochmeter.shared.types import Document

SYSTEM_CALLS = (
    *("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion"),
    "nvmlDeviceGetCount",
)
CLOCKS = ("GRAPHICS", "SM", "MEM", "VIDEO")
THRESHOLDS = ("SHUTDOWN", "SLOWDOWN", "MEM_MAX", "GPU_MAX")
INSTANT, AVERAGE = "NVML_FI_DEV_POWER_INSTANT", "NVML_FI_DEV_POWER_AVERAGE"
FIELDS = "nvmlDeviceGetFieldValues"
POWER_CALLS = (
    *(("nvmlDeviceGetTotalEnergyConsumption",), ("nvmlDeviceGetPowerUsage",)),
    *((FIELDS, INSTANT, f"NVML_POWER_SCOPE_{scope}") for scope in ("GPU", "MODULE", "MEMORY")),
)
GAUGE_CALLS = (
    *(("nvmlDeviceGetClockInfo", f"NVML_CLOCK_{clock}") for clock in CLOCKS),
    *(("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"), ("nvmlDeviceGetUtilizationRates",)),
    *(("nvmlDeviceGetMemoryInfo",), ("nvmlDeviceGetCurrentClocksThrottleReasons",), ("nvmlDeviceGetPerformanceState",)),
    *((FIELDS, AVERAGE, f"NVML_POWER_SCOPE_{scope}") for scope in ("GPU", "MODULE")),
)
GPU_CALLS = (
    *((f"nvmlDeviceGet{name}",) for name in (
        "Name", "Index", "MinorNumber", "UUID", "Serial", "PciInfo", "Brand", "Architecture", "CudaComputeCapability",
        "MigMode", "C2cModeInfoV", "MultiGpuBoard", "VbiosVersion", "PersistenceMode", "ComputeMode",
        "VirtualizationMode", "PowerManagementMode", "PowerManagementLimit", "PowerManagementLimitConstraints",
        "PowerManagementDefaultLimit", "EnforcedPowerLimit", "PowerSource", "EccMode", "NumFans", "FanSpeed",
        "SupportedMemoryClocks", "SupportedClocksThrottleReasons", "CurrPcieLinkGeneration", "CurrPcieLinkWidth",
        "MemoryBusWidth", "NumGpuCores", "NumaNodeId",
    )),
    *(("nvmlDeviceGetMaxClockInfo", f"NVML_CLOCK_{clock}") for clock in CLOCKS),
    *(("nvmlDeviceGetApplicationsClock", f"NVML_CLOCK_{clock}") for clock in CLOCKS[:3]),
    *(("nvmlDeviceGetTemperatureThreshold", f"NVML_TEMPERATURE_THRESHOLD_{name}") for name in THRESHOLDS),
    ("nvmlGpmQueryDeviceSupport",),
)  # fmt: skip
"""Functions of NVML with the names of their constant arguments: read often, read rarely, and read once."""
NO_PROCESSES: Mapping[str, Document] = {"nvmlDeviceGetComputeRunningProcesses()": {"result": []}}
"""Other processes are not recorded."""
AMD_POWER = ("amdsmi_get_energy_count", "amdsmi_get_power_info")
AMD_GAUGES = ("amdsmi_get_gpu_metrics_info", "amdsmi_get_gpu_activity", "amdsmi_get_gpu_vram_usage")
AMD_CALLS = (*("amdsmi_get_gpu_asic_info", "amdsmi_get_power_cap_info", "amdsmi_get_gpu_board_info"),)
GPM_ERRORS = {nvml.InUseError: "NVML_ERROR_IN_USE", PermissionError: "NVML_ERROR_NO_PERMISSION"}
TUPLE = "tuple"  # the only key of a mapping in place of a tuple
Call = Callable[[], Document]
"""Makes a call of a driver and returns its outcome."""


class DriverCalls:
    """The calls of a driver on one GPU.

    Attributes:
        once: The outcomes of those that are read once, by the name of the call.
        often: Calls whose results change fast: power and energy.
        rarely: Calls of other gauges.
    """

    def __init__(self) -> None:
        self.once: dict[str, Document] = {}
        self.often: dict[str, Call] = {}
        self.rarely: dict[str, Call] = {}

    def read_all(self) -> None:
        """Make each call once; those that fail are not sampled."""
        for calls in (self.often, self.rarely):
            for name, call in list(calls.items()):
                self.once[name] = call()
                if "error" in self.once[name]:
                    del calls[name]


def nvml_calls(opened: ExitStack, identifiers: Identifiers) -> tuple[Document, list[DriverCalls]]:
    """Start NVML until `opened` closes; return the outcomes that belong to no GPU, and the calls of each GPU.

    Without NVML, the only outcome is the `reason`.
    """
    try:
        opened.callback(nvml.start())
    except OSError as error:
        return {"reason": identifiers.replace(str(error))}, []
    client = nvml.client()
    system = {f"{name}()": nvml_outcome(client, name, [], identifiers) for name in SYSTEM_CALLS}
    count = system["nvmlDeviceGetCount()"].get("result") or 0
    return {"system": system}, [_nvml_gpu(client, index, opened, identifiers) for index in range(count)]


def _nvml_gpu(client: Any, index: int, opened: ExitStack, identifiers: Identifiers) -> DriverCalls:
    calls = DriverCalls()
    try:
        handle = client.nvmlDeviceGetHandleByIndex(index)
    except client.NVMLError as error:
        calls.once["nvmlDeviceGetHandleByIndex()"] = {"error": error.value}
        return calls

    def named(function: str, constants: tuple[str, ...]) -> Iterator[tuple[str, Call]]:
        with suppress(AttributeError):  # an old client lacks the constant or the function
            numbers = [getattr(client, constant) for constant in constants]
            arguments: list[Any] = [[tuple(numbers)]] if function == FIELDS else numbers
            getattr(client, function)
            yield (
                call_name(function, *numbers),
                lambda: nvml_outcome(client, function, [handle, *arguments], identifiers),
            )

    for function, *constants in GPU_CALLS:
        calls.once |= {name: call() for name, call in named(function, tuple(constants))}
    for kind, wanted in ((calls.often, POWER_CALLS), (calls.rarely, GAUGE_CALLS)):
        for function, *constants in wanted:
            kind |= dict(named(function, tuple(constants)))
    _add_supported_clocks(calls, client, handle)
    uuid = ""
    with suppress(client.NVMLError):
        uuid = client.nvmlDeviceGetUUID(handle)
    _add_gpm(calls, uuid, opened)
    calls.once |= NO_PROCESSES
    calls.read_all()
    return calls


def _add_supported_clocks(calls: DriverCalls, client: Any, handle: Any) -> None:
    """Add the clocks of the GPU that are possible with each clock of its memory."""
    for clock in calls.once.get("nvmlDeviceGetSupportedMemoryClocks()", {}).get("result", []):
        with suppress(client.NVMLError):
            clocks = client.nvmlDeviceGetSupportedGraphicsClocks(handle, clock)
            calls.once[call_name("nvmlDeviceGetSupportedGraphicsClocks", clock)] = {"result": list(clocks)}


def _add_gpm(calls: DriverCalls, uuid: str, opened: ExitStack) -> None:
    """Add the performance counters, as NVML's values by the names of its metrics, or why they cannot be read."""
    if not calls.once.get("nvmlGpmQueryDeviceSupport()", {}).get("result", {}).get("isSupportedDevice"):
        return
    name = "nvmlGpmMetricsGet()"
    try:
        counters = nvml.GpmCounters(uuid, opened)
        counters.read()
    except OSError as error:
        code = next((code for kind, code in GPM_ERRORS.items() if isinstance(error, kind)), "NVML_ERROR_NOT_SUPPORTED")
        calls.once[name] = {"error": getattr(nvml.client(), code)}
        return

    def read() -> Document:
        try:
            metrics = counters.read()
        except OSError:
            return {"error": nvml.client().NVML_ERROR_UNKNOWN}
        return {"result": {nvml.GPM[metric][0]: value / nvml.GPM[metric][1] for metric, value in metrics.items()}}

    calls.rarely[name] = read


def call_name(function: str, *arguments: Any) -> str:
    """Return the name of a call in a table, such as `nvmlDeviceGetClockInfo(1)`."""
    return f"{function}({', '.join(map(str, arguments))})"


def nvml_outcome(client: Any, function: str, arguments: list[Any], identifiers: Identifiers) -> Document:
    try:
        result = encode(getattr(client, function)(*arguments))
    except client.NVMLError as error:
        return {"error": error.value}
    except OSError:  # of an old library without the function
        return {"error": client.NVML_ERROR_FUNCTION_NOT_FOUND}
    if function == FIELDS:  # without the time of the reading, which would make each one a change
        result = [{name: field[name] for name in ("nvmlReturn", "value")} for field in result]
    if function == "nvmlDeviceGetSerial":
        return {"result": identifiers.stand_in(SERIAL, str(result))}
    return {"result": without_identifiers(result, identifiers)}


def amd_calls(buses: list[str], identifiers: Identifiers) -> tuple[Document, dict[str, DriverCalls]]:
    """Return why there is no amdsmi, if so, and the calls of each GPU by its PCI address."""
    try:
        client = amd.load_amdsmi() if buses else None
    except OSError as error:
        return {"reason": identifiers.replace(str(error))}, {}
    return {}, {bus: _amd_gpu(client, bus, identifiers) for bus in buses}


def _amd_gpu(client: Any, bus: str, identifiers: Identifiers) -> DriverCalls:
    calls, find = DriverCalls(), "amdsmi_get_processor_handle_from_bdf"
    try:
        handle = getattr(client, find)(bus)
    except client.AmdSmiException as error:
        calls.once[find] = {"error": str(error)}
        return calls

    def outcome(function: str) -> Document:
        try:
            result = encode(getattr(client, function)(handle))
        except client.AmdSmiException as error:
            return {"error": str(error)}
        return {"result": without_identifiers(result, identifiers)}

    def call_of(function: str) -> Call:
        return lambda: outcome(function)

    known = [[name for name in names if hasattr(client, name)] for names in (AMD_CALLS, AMD_POWER, AMD_GAUGES)]
    calls.once = {name: outcome(name) for name in known[0]}
    calls.often, calls.rarely = ({name: call_of(name) for name in names} for names in known[1:])
    calls.read_all()
    return calls


def encode(value: Any) -> Any:
    """Return a result of a driver's client as values of JSON; structures become mappings of their fields."""
    match value:
        case enum.Enum():
            return value.name
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.decode(errors="replace")
        case timedelta():
            return value.total_seconds()
        case ctypes.Structure() | ctypes.Union():
            return {name: encode(getattr(value, name)) for name, *_ in type(value)._fields_}
        case SimpleNamespace():
            return {name: encode(field) for name, field in vars(value).items()}
        case Mapping():
            return {str(name): encode(field) for name, field in value.items()}
        case tuple():
            return {TUPLE: [encode(item) for item in value]}
        case list() | ctypes.Array():
            return [encode(item) for item in value]
    return None  # a pointer or a handle


def without_identifiers(value: Any, identifiers: Identifiers) -> Any:
    """Return values of JSON with identifiers replaced: by their form, and those whose key names them."""
    if isinstance(value, str):
        return identifiers.replace(value)
    if isinstance(value, list):
        return [without_identifiers(item, identifiers) for item in value]
    if isinstance(value, dict):
        return {
            name: identifiers.stand_in(SERIAL, str(item))
            if "serial" in name.lower() and item not in ("", "N/A")
            else without_identifiers(item, identifiers)
            for name, item in value.items()
        }
    return value
