"""Energy of CPU packages and their DRAM from RAPL counters, by the kernel's powercap files; and an estimate.

zeus is not used: it counts psys (the whole platform) as another CPU, and starts a process per counter for overflows.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from epochmeter.machine.gauges import core_ticks
from epochmeter.machine.slurm import sharing_reason
from epochmeter.machine.sysfs import read_text
from epochmeter.power.meter import Domain, Instrument, Meter, NullMeter
from epochmeter.power.sampler import Sampler
from epochmeter.power.uncertainty import Response
from epochmeter.shared.units import NANOSECOND

PERIOD_S = 0.001  # update period of a counter
MAX_INTERVAL_S = 20.0
"""Longest mean interval of readings; single intervals are up to 1.5 times as long. The smallest counters overflow at
65 kJ, so no overflow is missed below `MAX_W`."""
MIN_INTERVAL_S = 0.005
"""Shortest time between readings that give power: over less, one counter update is more than a fifth of the power."""
MAX_W = 2000.0  # highest plausible power of a counter, in watts
RESET_UJ = 10**15  # subtracted after a reset of a counter, so that it runs backwards: more than any run uses
MAX_READ_S = 0.001  # longest duration of a reading; a longer one means that the thread was interrupted
MAX_TRIES = 3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ESTIMATE_HINT = "For an estimate, add the CPU's rated power in watts: `meter=estimate meter.tdp_w=65`"


def open_rapl(*, gpus: Sequence[str], root: Path, period_s: float = 0.02) -> Meter:
    """Open the counters of all CPU packages and their DRAM, read every `period_s` seconds."""
    period_s = min(max(period_s, 3 * MIN_INTERVAL_S), MAX_INTERVAL_S)  # the intervals have jitter
    if others := sharing_reason():
        return NullMeter(others)
    try:
        zones = find_zones(root)
    except RuntimeError as reason:
        return NullMeter(f"{reason} {ESTIMATE_HINT}")
    counters, powers = {}, {}
    for name, zone in zones.items():
        covers = "DRAM of a CPU package" if is_dram(name) else "CPU package"
        counters[name] = Instrument(Domain("counter", PERIOD_S, covers), zone.read)
        sampled = Domain("sampled", period_s, covers, response=Response(period_s))
        powers[name] = Instrument(sampled, power_from_energy(zone.read))
    sampler = Sampler(powers, total=list(zones), period_s=period_s, checks=True)
    covers = "CPU packages and DRAM" if any(map(is_dram, zones)) else "CPU packages"
    return Meter(counters=counters, powers=sampler, total=list(zones), covers=covers)


def open_estimate(*, gpus: Sequence[str], root: Path, tdp_w: float | None = None) -> Meter:
    """Open the estimate: busy time of all cores / number of cores x `tdp_w`, the CPU's rated power.

    The user gives the rated power, since no default would be right.
    """
    if others := sharing_reason():
        return NullMeter(others)
    if tdp_w is None:
        return NullMeter(f"meter.tdp_w is not set. {ESTIMATE_HINT}")
    if not tdp_w > 0:
        raise ValueError(f"meter.tdp_w={tdp_w} is not a rated power\nhint: give it in watts: meter.tdp_w=65")
    stat = root / "proc/stat"
    try:
        cores = len(core_ticks(stat)) - 1  # without `cpu`, which has all of them
    except (OSError, ValueError) as error:
        return NullMeter(f"The energy cannot be estimated: {error}")
    covers = f"CPU: busy fraction of {tdp_w:g} W"
    domain = Domain("estimated", 1 / TICKS_PER_S, covers)
    counter = Instrument(domain, lambda: core_ticks(stat)["cpu"][0] / TICKS_PER_S * tdp_w / cores)
    reason = "meter=estimate: an estimate, not a measurement."
    return Meter(counters={"cpu": counter}, total=["cpu"], covers=covers, reason=reason)


def power_from_energy(read: Callable[[], float]) -> Callable[[], float]:
    """Convert a reading of joules into one of watts: the mean power since the previous reading."""
    last: tuple[int, float] | None = None

    def watts() -> float:
        nonlocal last
        now = timestamped(read)
        before = last or now
        seconds = (now[0] - before[0]) * NANOSECOND
        last = now if seconds >= MIN_INTERVAL_S else before
        if last is before:
            raise OSError(f"{seconds:.4f} s since the previous reading, at least {MIN_INTERVAL_S} s needed")
        if now[1] < before[1]:
            raise OSError("the counter was reset")
        return (now[1] - before[1]) / seconds

    return watts


def timestamped(read: Callable[[], float]) -> tuple[int, float]:
    """Read joules with a timestamp in ns; OSError after `MAX_TRIES` interruptions."""
    for _ in range(MAX_TRIES):
        begun_ns, joules, ended_ns = time.monotonic_ns(), read(), time.monotonic_ns()
        if (ended_ns - begun_ns) * NANOSECOND < MAX_READ_S:
            return (begun_ns + ended_ns) // 2, joules
    raise OSError(f"each of {MAX_TRIES} readings took longer than {MAX_READ_S} s, so that their time is unknown")


class Zone:
    """A RAPL counter without overflow, if it is read at least once per counter range.

    A counter that was reset, as by a suspension, or is implausible runs backwards: its energy since then is unknown.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = self._total_uj = int(self._file.read_text())
        self._last_s = time.monotonic()
        self._lock = threading.Lock()

    def read(self) -> float:
        with self._lock:
            now_uj, now_s = int(self._file.read_text()), time.monotonic()
            increase_uj = now_uj - self._last_uj
            if increase_uj < 0:  # an overflow
                increase_uj += self._range_uj
            if increase_uj > 1e6 * MAX_W * (1 + now_s - self._last_s):
                increase_uj = -RESET_UJ
            self._total_uj += increase_uj
            self._last_uj, self._last_s = now_uj, now_s
            return self._total_uj / 1e6


def find_zones(root: Path) -> dict[str, Zone]:
    """Find the zones of the total by domain; RuntimeError, with a remedy, if no package can be read.

    Core and uncore (in their package), psys (all packages), `intel-rapl-mmio` (the same package) and counters of 0
    (some virtual machines) are left out.
    """
    powercap = root / "sys/class/powercap"
    try:
        names = {folder: domain_name(folder) for folder in sorted(powercap.glob("intel-rapl:*"))}
        zones = {name: Zone(folder) for folder, name in names.items() if name}
    except PermissionError as error:
        raise RuntimeError(
            f"Only root may read the RAPL counter {error.filename}. Allow it until the next boot: "
            "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        ) from error
    except FileNotFoundError as error:
        raise RuntimeError(
            f"Cannot read {error.filename}, which containers hide by default. Start this one with "
            "--security-opt systempaths=unconfined (Docker) or unmask=/sys/devices/virtual/powercap (Podman)."
        ) from error
    except (OSError, ValueError) as error:
        raise RuntimeError(f"Cannot read the RAPL counters: {error}") from error
    zones = {name: zone for name, zone in zones.items() if zone.read() > 0}
    if all(map(is_dram, zones)):
        is_virtual = re.search(r"^flags\s*:.*\bhypervisor\b", read_text(root / "proc/cpuinfo"), re.MULTILINE)
        cause = "virtual machines and ARM boards have none. On a physical x86 machine: `sudo modprobe intel_rapl_msr`."
        cause = "this is a virtual machine." if is_virtual else cause
        raise RuntimeError(f"No RAPL energy counter below {powercap}: {cause}")
    return zones


def domain_name(folder: Path) -> str | None:
    """The domain of a zone, such as cpu0, cpu1_die0 or dram0; None for zones outside of the total."""
    name = (folder / "name").read_text().strip()
    if package := re.fullmatch(r"package-(\d+)(?:-die-(\d+))?", name):
        number, die = package.groups()
        return f"cpu{number}" + (f"_die{die}" if die else "")
    if name == "dram":
        package_domain = domain_name(folder.with_name(folder.name.rpartition(":")[0]))
        return package_domain and package_domain.replace("cpu", "dram")
    return None


def is_dram(name: str) -> bool:
    return name.startswith("dram")
