"""Gauges, in kernel files and of NVML: memory, temperatures, a GPU's utilization and clock, and throttling."""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.machine.amd import find_card, find_cards
from epochmeter.machine.jetson import gpu_devfreqs
from epochmeter.machine.nvml import POWER_CAPPED, THERMAL, NvmlGpu
from epochmeter.machine.sysfs import match_group, read_text

JETSON_LOADS = (
    "sys/devices/gpu.0/load",
    "sys/devices/platform/gpu.0/load",
    "sys/devices/platform/*.g*/load",
    "sys/devices/platform/bus@0/*.g*/load",
)
CPU_SENSORS = ("coretemp", "k10temp", "zenpower")
CONSTANT_ZONES = ("PMIC-Die",)  # thermal zones that always read 100 degrees
CELSIUS = (1000, -40, 126)  # millidegrees, lowest and highest plausible value: 127 is the error of some sensors
THROTTLE_PATTERN = r"(throttle|balanced|cpufreq|devfreq)"  # cooling devices that lower clocks, unlike fans
OTHER_CAUSE = "elsewhere"  # cause for lowered clocks of a device that does not train: a note, but no metric

AMD_FILES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("gpu_utilization", "gpu_busy_percent", (100, 0, 1)),
    ("gpu_dram_active_fraction", "mem_busy_percent", (100, 0, 1)),
    ("gpu_memory_bytes", "mem_info_vram_used", ()),
    ("temperature_max_c", "hwmon/hwmon*/temp*_input", CELSIUS),
    ("gpu_clock_mean_hz", "hwmon/hwmon*/freq1_input", ()),
)
"""Quantity, file of the driver, and arguments of `read_number`."""

ThrottleCauses = Mapping[str, Sequence[str]]
"""Cause -> texts about slowed devices; an empty list for a cause that is not active, no entry for an unknown one."""


class Gauge(NamedTuple):
    """An instrument of one quantity; `read` raises OSError or ValueError.

    It returns a number in the unit of the quantity's name. For `cpu_utilization` and `network_bytes` it returns a pair
    of counters by name; for `throttling`, the causes that were active since the last reading. `device` names the device
    in the columns of `gauge_series`.
    """

    quantity: str
    source: str
    read: Callable[[], Any]
    device: str = ""


def find_gauges(root: Path, gpus: Sequence[str]) -> Iterator[Gauge]:
    """List the gauges of a machine in kernel files."""
    yield Gauge("cpu_utilization", "/proc/stat", partial(core_ticks, root / "proc/stat"))
    yield Gauge("ram_peak_bytes", "/proc/meminfo", partial(used_bytes, root / "proc/meminfo"))
    yield Gauge("network_bytes", "/proc/net/dev", partial(network_bytes, root))
    yield from _temperatures(root)
    cards = find_cards(root)
    for card in filter(None, (find_card(gpu, cards) for gpu in gpus)):
        for quantity, pattern, scale in AMD_FILES:
            for file in sorted(card.folder.glob(pattern)):
                yield Gauge(quantity, "amdgpu", partial(read_number, file, *scale), f"gpu{card.number}")
    yield from _jetson(root)
    yield from _throttling(root, OTHER_CAUSE if gpus else THERMAL)


def _temperatures(root: Path) -> Iterator[Gauge]:
    for zone in sorted(root.glob("sys/class/thermal/thermal_zone*")):
        if (kind := read_text(zone / "type")) not in CONSTANT_ZONES:
            read = partial(read_number, zone / "temp", *CELSIUS)
            yield Gauge("temperature_max_c", f"thermal zone {kind}", read, re.sub(r"\W+", "_", kind))
    for name in sorted(root.glob("sys/class/hwmon/hwmon*/name")):
        if (chip := read_text(name)) in CPU_SENSORS:
            read = partial(read_number, name.with_name("temp1_input"), *CELSIUS)
            yield Gauge("temperature_max_c", f"sensor {chip}", read, chip)


def _jetson(root: Path) -> Iterator[Gauge]:
    loads = (path for pattern in JETSON_LOADS for path in sorted(root.glob(pattern)))
    if load := next(loads, None):
        read = partial(read_number, load, per_unit=1000, low=0, high=1)
        yield Gauge("gpu_utilization", f"/{load.relative_to(root)}", read, "gpu0")
    for devfreq in gpu_devfreqs(root)[:1]:
        yield Gauge("gpu_clock_mean_hz", f"devfreq {devfreq.name}", partial(read_number, devfreq / "cur_freq"), "gpu0")


def _throttling(root: Path, by_heat: str) -> Iterator[Gauge]:
    """List the throttling gauges of a board or a CPU; `by_heat` is the cause for thermal throttling."""
    counts = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/package_throttle_count"))
    # Of each package the counter at its first core.
    packages = {read_text(count.parents[1] / "topology/physical_package_id"): count for count in reversed(counts)}
    for package, count in sorted(packages.items()):
        label = f"CPU package {package} thermal throttling"
        yield Gauge("throttling", "thermal_throttle", counter_increased(count, by_heat, label))
    for count in sorted(root.glob("sys/class/hwmon/hwmon*/oc*_event_cnt")):
        label = f"board over-current throttling ({count.name.partition('_')[0]})"
        yield Gauge("throttling", "over-current events", counter_increased(count, POWER_CAPPED, label))
    for kind in sorted(root.glob("sys/class/thermal/cooling_device*/type")):
        if match_group(THROTTLE_PATTERN, read_text(kind)):
            label = f"{read_text(kind)} thermal throttling"
            read = partial(is_active, kind.with_name("cur_state"), by_heat, label)
            yield Gauge("throttling", "cooling devices", read)


def nvml_gauges(gpu: NvmlGpu) -> Iterator[Gauge]:
    source = f"NVML, {gpu.name}"
    yield Gauge("gpu_utilization", source, gpu.utilization, gpu.name)
    yield Gauge("gpu_clock_mean_hz", source, gpu.clock_hz, gpu.name)
    yield Gauge("gpu_memory_bytes", source, gpu.memory_used_bytes, gpu.name)
    yield Gauge("temperature_max_c", source, gpu.temperature_c, gpu.name)
    yield Gauge("throttling", source, gpu.throttle_reasons)


def read_number(path: Path, per_unit: float = 1, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a file's number, divided by its steps per unit; ValueError if it is out of range."""
    value = float(path.read_text()) / per_unit
    if not low <= value <= high:
        raise ValueError(f"{path} has an implausible value of {value:g}.")
    return value


def used_bytes(meminfo: Path) -> float:
    """Return the memory that is not available without swapping."""
    listing = meminfo.read_text()
    total, available = (int(match_group(rf"^{name}:\s*(\d+) kB", listing)) for name in ("MemTotal", "MemAvailable"))
    return (total - available) * 1024


def core_ticks(stat: Path) -> dict[str, tuple[int, int]]:
    """Return busy ticks and all ticks since boot, of all cores together (`cpu`) and of each, such as `cpu0`."""
    ticks_of = {}
    for core, *counts in (line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")):
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, counts[:8])
        busy = user + nice + system + irq + softirq  # `user` has the guests; `steal` is of other virtual machines
        ticks_of[core] = (busy, busy + idle + iowait + steal)
    return ticks_of


def network_bytes(root: Path) -> dict[str, tuple[int, int]]:
    """Return the bytes received and sent since boot by all interfaces except loopback, as `network`."""
    lines = (line.partition(":") for line in (root / "proc/net/dev").read_text().splitlines()[2:])
    interfaces = {name.strip(): fields.split() for name, _, fields in lines if name.strip() != "lo"}
    # If there are physical interfaces, only these count: bridges would count their traffic a second time.
    counted = [name for name in interfaces if os.path.exists(f"{root}/sys/class/net/{name}/device")] or [*interfaces]
    received, sent = (sum(int(interfaces[name][column]) for name in counted) for column in (0, 8))
    return {"network": (received, sent)}


def counter_increased(path: Path, cause: str, label: str) -> Callable[[], ThrottleCauses]:
    """Return a function that reports a cause if a counter has increased since the last call."""
    last: int | None = None

    def read() -> ThrottleCauses:
        nonlocal last
        before, last = last, int(path.read_text())
        return {cause: [label] if before is not None and last > before else []}

    return read


def is_active(path: Path, cause: str, label: str) -> ThrottleCauses:
    return {cause: [label] if read_number(path) > 0 else []}
