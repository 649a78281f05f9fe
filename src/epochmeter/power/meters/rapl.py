"""Energy of CPU packages and their DRAM from RAPL counters, by the kernel's powercap files; and an estimate.

zeus is not used: it counts psys (the whole platform) as another CPU, and starts a process per counter for overflows.
"""

import os
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.energy_codes import EnergyCode, energy_problem
from epochmeter.machine.gauges import core_ticks
from epochmeter.machine.slurm import sharing_problem
from epochmeter.machine.sysfs import read_text
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter, NullMeter, unmetered
from epochmeter.power.meters.mirrors import group_mirrors, read_as_one
from epochmeter.power.sampler import Sampler
from epochmeter.power.uncertainty import Response
from epochmeter.shared.problem import MachineError, input_error, machine_error, problem_of
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
IN_TOTAL = ("cpu", "dram")  # beginnings of the domains of the total
PACKAGE_SCOPE, DRAM_SCOPE = "CPU package", "DRAM of a CPU package"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ESTIMATE_HINT = "for an estimate, add the CPU's rated power in watts: `meter=estimate meter.tdp_w=65`"


def open_rapl(*, gpus: Sequence[str], root: Path, period_s: float = 0.02, cross_check: bool = True) -> EnergyMeter:
    """Open the counters of all CPU packages and their DRAM, read every `period_s` seconds.

    `cross_check` also reads the zones core, uncore and psys, outside of the total.
    """
    period_s = min(max(period_s, 3 * MIN_INTERVAL_S), MAX_INTERVAL_S)  # the intervals have jitter
    if other_jobs := sharing_problem():
        return unmetered(other_jobs)
    try:
        zones = find_zones(root)
    except RuntimeError as error:
        problem = problem_of(error)
        return unmetered(problem._replace(hint="; or, ".join(filter(None, (problem.hint, ESTIMATE_HINT)))))
    readers = {name: zone.read for name, zone in zones.items()}
    groups = group_mirrors(readers, PERIOD_S)
    counted = {group[0]: read_as_one([readers[name] for name in group]) for group in groups}
    total = list(counted)
    checking = find_check_zones(root) if cross_check else {}
    cross_checks = checks_of(total, checking)
    compared = {name for check in cross_checks for name in check.domains}
    counted |= {name: zone.read for name, zone in checking.items() if name in compared}
    counters, powers = {}, {}
    for name, read in counted.items():
        counters[name] = Instrument(Domain("counter", PERIOD_S, scope_of(name)), read)
        sampled = Domain("sampled", period_s, scope_of(name), response=Response(period_s))
        powers[name] = Instrument(sampled, power_from_energy(read))  # which also reads each overflow
    repeated = [
        f"{name} shows the counter of {first}, which is counted once." for first, *others in groups for name in others
    ]
    return EnergyMeter(
        counters=counters,
        powers=Sampler(powers, total=total, period_s=period_s, checks=True),
        total=total,
        covers="CPU packages and DRAM" if any(map(is_dram, total)) else "CPU packages",
        cross_checks=cross_checks,
        reason=" ".join(repeated) or None,
    )


def checks_of(total: Sequence[str], checking: Container[str]) -> list[CrossCheck]:
    """The cross-checks of packages: they include their core and uncore, and are part of the platform (psys)."""
    packages = tuple(name for name in total if not is_dram(name))
    checks = []
    for package in packages:
        parts = tuple(name for domain in ("core", "uncore") if (name := package.replace("cpu", domain)) in checking)
        checks += [CrossCheck(parts, "at most", (package,))] if parts else []
    return checks + ([CrossCheck(packages, "at most", ("psys",))] if "psys" in checking else [])


def open_estimate(*, gpus: Sequence[str], root: Path, tdp_w: float | None = None) -> EnergyMeter:
    """Open the estimate: busy time of all cores / number of cores x `tdp_w`, the CPU's rated power.

    The user gives the rated power, since no default would be right.
    """
    if others := sharing_problem():
        return unmetered(others)
    if tdp_w is None:
        return NullMeter("meter.tdp_w is not set", ESTIMATE_HINT, EnergyCode.NOT_CONFIGURED.value)
    if not tdp_w > 0:
        raise input_error(f"meter.tdp_w={tdp_w} is not a rated power", "give it in watts: meter.tdp_w=65")
    stat = root / "proc/stat"
    try:
        cores = len(core_ticks(stat)) - 1  # without `cpu`, which has all of them
    except (OSError, ValueError) as error:
        return NullMeter(f"The energy cannot be estimated: {error}")
    covers = f"CPU: busy fraction of {tdp_w:g} W"
    domain = Domain("estimated", 1 / TICKS_PER_S, covers)
    counter = Instrument(domain, lambda: core_ticks(stat)["cpu"][0] / TICKS_PER_S * tdp_w / cores)
    reason = "meter=estimate: an estimate, not a measurement."
    estimated = [EnergyCode.ESTIMATED]
    return EnergyMeter(counters={"cpu": counter}, total=["cpu"], covers=covers, reason=reason, codes=estimated)


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

    A name that several zones have is followed by their numbers.

    Core and uncore (in their package), psys (all packages), `intel-rapl-mmio` (the same package) and counters of 0
    (some virtual machines) are left out.
    """
    powercap = root / "sys/class/powercap"
    try:
        names = {folder: domain_name(folder) for folder in sorted(powercap.glob("intel-rapl:*"))}
        counts = Counter(names.values())
        zones = {
            name if counts[name] == 1 else f"{name}_{zone_number(folder)}": Zone(folder)
            for folder, name in names.items()
            if name and name.startswith(IN_TOTAL)
        }
    except PermissionError as error:
        file = Path(error.filename)
        folder = shlex.quote(str(powercap))  # of all zones, as the next one has the same permissions
        files = f"{folder}/intel-rapl:*/{file.name}" if file.parent.parent == powercap else shlex.quote(str(file))
        hint = f"allow it until the next boot: sudo chmod a+r {files}"
        refused = energy_problem(EnergyCode.NO_PERMISSION, f"Only root may read the RAPL counter {file}", hint)
        raise MachineError(refused) from error
    except FileNotFoundError as error:
        raise machine_error(
            f"Cannot read {error.filename}, which containers hide by default",
            "start this one with --security-opt systempaths=unconfined (Docker) or "
            "unmask=/sys/devices/virtual/powercap (Podman)",
        ) from error
    except (OSError, ValueError) as error:
        raise RuntimeError(f"Cannot read the RAPL counters: {error}") from error
    zones = {name: zone for name, zone in zones.items() if zone.read() > 0}
    if all(map(is_dram, zones)):
        is_virtual = re.search(r"^flags\s*:.*\bhypervisor\b", read_text(root / "proc/cpuinfo"), re.MULTILINE)
        cause = "this is a virtual machine" if is_virtual else "virtual machines and ARM boards have none"
        hint = "" if is_virtual else "on a physical x86 machine: `sudo modprobe intel_rapl_msr`"
        raise machine_error(f"No RAPL energy counter below {powercap}: {cause}", hint)
    return zones


def other_meter_hint(root: Path) -> str:
    """Return the remedy for a meter that this machine does not have: RAPL if it can be read, else an estimate."""
    try:
        find_zones(root)
    except RuntimeError:
        return ESTIMATE_HINT
    return "select another meter, such as `meter=rapl`"


def find_check_zones(root: Path) -> dict[str, Zone]:
    """Find the zones outside of the total that can be read, by domain."""
    zones = {}
    for folder in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        with suppress(OSError, ValueError):
            name, zone = domain_name(folder), Zone(folder)
            if name and not name.startswith(IN_TOTAL) and zone.read() > 0:
                zones[name] = zone
    return zones


def domain_name(folder: Path) -> str | None:
    """The domain of a zone, such as cpu0, cpu1_die0, dram0, core0, uncore0 or psys; None for other zones."""
    name = (folder / "name").read_text().strip()
    if package := re.fullmatch(r"package-(\d+)(?:-die-(\d+))?", name):
        number, die = package.groups()
        return f"cpu{number}" + (f"_die{die}" if die else "")
    if name in ("dram", "core", "uncore"):
        package_domain = domain_name(folder.with_name(folder.name.rpartition(":")[0]))
        return package_domain and package_domain.replace("cpu", name)
    return name if name == "psys" else None


def zone_number(folder: Path) -> str:
    """The number of a zone: 0-1 of intel-rapl:0:1."""
    return folder.name.partition(":")[2].replace(":", "-")


def scope_of(name: str) -> str:
    """What a domain covers."""
    if is_dram(name):
        return DRAM_SCOPE
    return PACKAGE_SCOPE if name.startswith("cpu") else f"RAPL zone {name}"


def is_dram(name: str) -> bool:
    return name.startswith("dram")
