"""Types of the values in the tables of a recording, which are checked when it is read: it may come from anybody.

Only values that this project uses have a type. Of a driver's function, it is that of its Python client, encoded.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from epochmeter.machine import nvml
from epochmeter.machine.recorded.driver_calls import FIELDS, TUPLE
from epochmeter.shared.types import Document

IsValid = Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Whether it is a finite number that is not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def is_whole(value: Any) -> bool:
    return is_number(value) and isinstance(value, int)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def list_of(is_item: IsValid, count: int | None = None) -> IsValid:
    """Return the check of a list or a tuple, of any length or a certain one."""

    def is_valid(value: Any) -> bool:
        items = value.get(TUPLE) if isinstance(value, dict) and value.keys() == {TUPLE} else value
        return isinstance(items, list) and count in (None, len(items)) and all(map(is_item, items))

    return is_valid


def mapping_of(is_key: IsValid, is_value: IsValid) -> IsValid:
    """Return the check of a mapping with any keys."""
    return lambda value: isinstance(value, dict) and all(map(is_key, value)) and all(map(is_value, value.values()))


def struct(**fields: IsValid) -> IsValid:
    """Return the check of a mapping that has at least these fields."""
    return lambda value: (
        isinstance(value, dict) and all(name in value and is_valid(value[name]) for name, is_valid in fields.items())
    )


def _is_energy_count(value: Any) -> bool:
    counts = [name for name in ("energy_accumulator", "power") if isinstance(value, dict) and name in value]
    return bool(counts) and struct(**{counts[0]: is_number, "counter_resolution": is_number})(value)


COUNTERS = frozenset(name for name, _ in nvml.GPM.values())
NVML_RESULTS: Mapping[str, IsValid] = {
    **dict.fromkeys(("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion"), is_text),
    **{f"nvmlDeviceGet{name}": is_text for name in ("Name", "UUID", "Serial")},
    **{f"nvmlDeviceGet{name}": is_number for name in (
        "TotalEnergyConsumption", "PowerUsage", "PowerManagementLimit", "PowerManagementDefaultLimit",
        "EnforcedPowerLimit", "ClockInfo", "MaxClockInfo", "Temperature",
    )},
    **{f"nvmlDeviceGet{name}": is_whole for name in (
        "Count", "Index", "MinorNumber", "CurrentClocksThrottleReasons",
    )},
    "nvmlSystemGetCudaDriverVersion": is_whole,
    "nvmlDeviceGetCudaComputeCapability": list_of(is_whole, 2),
    "nvmlDeviceGetPowerManagementLimitConstraints": list_of(is_number, 2),
    "nvmlDeviceGetMigMode": list_of(is_whole, 2),
    "nvmlDeviceGetSupportedMemoryClocks": list_of(is_whole),
    "nvmlDeviceGetSupportedGraphicsClocks": list_of(is_whole),
    "nvmlDeviceGetUtilizationRates": struct(gpu=is_number),
    "nvmlDeviceGetMemoryInfo": struct(used=is_number),
    "nvmlDeviceGetPciInfo": struct(busId=is_text),
    "nvmlDeviceGetC2cModeInfoV": struct(isC2cEnabled=is_number),
    "nvmlGpmQueryDeviceSupport": struct(isSupportedDevice=is_number),
    "nvmlGpmMetricsGet": mapping_of(COUNTERS.__contains__, is_number),
    "nvmlDeviceGetComputeRunningProcesses": list_of(lambda _: False),
}  # fmt: skip
"""Function of NVML -> the check of its result. Other processes are not recorded."""
JTOP_RESULTS: Mapping[str, IsValid] = {
    "interval": lambda value: is_number(value) and value > 0,
    "uptime": is_number,
    "power": lambda value: _has_watts(value),
    "nvpmodel": lambda value: value is None or struct(models=list_of(is_text))(value),
}
"""Attribute of jtop's client -> the check of its value."""
AMD_RESULTS: Mapping[str, IsValid] = {
    "amdsmi_get_energy_count": _is_energy_count,
    "amdsmi_get_gpu_metrics_info": mapping_of(is_text, lambda _: True),
}


def nvml_outcome(name: str, outcome: Any) -> Document:
    """Return the outcome of a call of NVML; ValueError if it has another form or type."""
    function = name.partition("(")[0]
    if function == FIELDS:
        return _outcome(name, outcome, _is_field, is_whole)
    return _outcome(name, outcome, NVML_RESULTS.get(function), is_whole)


def _is_field(value: Any) -> bool:
    if not list_of(struct(nvmlReturn=is_whole), 1)(value):
        return False
    (field,) = value
    return field["nvmlReturn"] != 0 or struct(value=struct(uiVal=is_number))(field)


def amd_outcome(name: str, outcome: Any) -> Document:
    """Return the outcome of a call of amdsmi; ValueError if it has another form or type."""
    return _outcome(name, outcome, AMD_RESULTS.get(name), is_text)


def _has_watts(value: Any) -> bool:
    """Whether all powers of rails are numbers, negative ones too. The meter refuses rails of another form."""
    if not isinstance(value, dict):
        return False
    listed = value.get("rail")
    rails = [*(listed.values() if isinstance(listed, dict) else ()), value.get("tot")]
    powers = [rail["power"] for rail in rails if isinstance(rail, dict) and "power" in rail]
    return all(type(power) in (int, float) and is_number(abs(power)) for power in powers)


def jtop_outcome(name: str, outcome: Any) -> Document:
    """Return the outcome of an attribute of jtop's client; ValueError if it has another form or type."""
    return _outcome(name, outcome, JTOP_RESULTS.get(name), is_text)


def _outcome(name: str, outcome: Any, is_result: IsValid | None, is_error: IsValid) -> Document:
    if not isinstance(outcome, dict) or len(outcome.keys() & {"result", "error"}) != 1:
        raise ValueError(f"{name} has neither a result nor an error")
    is_valid = is_error if "error" in outcome else is_result
    if is_valid and not is_valid(outcome.get("error", outcome.get("result"))):
        raise ValueError(f"{name} has a value of another type")
    return outcome


def mapping(value: Any, name: str) -> Document:
    """Return a mapping; ValueError if it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} has a value of another type")
    return value


def optional_text(value: Any, name: str) -> str:
    """Return a text, empty if it is missing; ValueError if it is none."""
    if not isinstance(value, str | None):
        raise ValueError(f"{name} has a value of another type")
    return value or ""


def times_s(fields: Document, duration_s: float) -> list[float]:
    """Return the times of a series; ValueError if one is none, or not within the recording."""
    times = mapping(fields, "a series")["times_s"]
    if not list_of(is_number)(times) or not all(time_s <= LATE * duration_s for time_s in times):
        raise ValueError("a series has a time of another type, or outside of the recording")
    return [float(time_s) for time_s in times]


LATE = 1.5  # the last samples may be this late, as a fraction of the duration, on a busy machine
