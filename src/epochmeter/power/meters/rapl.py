"""RAPL: what the CPU packages and their DRAM used, by the counters that the kernel shows below powercap.

Read here and not through zeus, which takes psys (the whole board) for one more CPU, follows the wraps of each
counter in a process of its own that imports our program anew, and knows no `machine.root`.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from epochmeter.machine.slurm import company
from epochmeter.power.meter import Absent, Counter, Domain, Instruments, Meter, Power
from epochmeter.power.meters.estimate import open_estimate
from epochmeter.power.sampler import Sampler
from epochmeter.shared.units import NANOSECOND

PERIOD_S = 0.001
"""How often a counter is renewed."""
LONGEST_S = 20.0
"""The smallest counters hold 65 kJ: read this often, none wraps twice unseen below 3 kW."""
SHORTEST_S = 0.005
"""Between readings that are nearer, a tick more or less of the counter's would be a fifth of the power and more."""
NEAR_S = 0.001
"""The clock read before a counter and that after it differ by more where the thread was held up in between."""
TRIES = 3


def open_rapl(
    *, gpus: Sequence[str], root: str | PathLike[str], period_s: float = 0.02, tdp_w: float | None = None
) -> Meter:
    """The counters of all CPU packages and their DRAM; without them the estimate, where `tdp_w` is given.

    Every `period_s` they are read for the power in between; so often, no wrap goes unseen. More often than three times
    the shortest stretch that has a power is not, for pauses are uneven.
    """
    period_s = min(max(period_s, 3 * SHORTEST_S), LONGEST_S)
    if others := company(os.environ):
        return Absent(others)
    try:
        zones = find_zones(Path(root) / "sys/class/powercap")
    except RuntimeError as reason:
        return open_estimate(gpus=gpus, root=root, tdp_w=tdp_w, because=str(reason))
    counters = {name: Counter(domain(name), zone.read) for name, zone in zones.items()}
    powers = {
        name: Power(Domain("sampled", period_s, counter.domain.covers, averaging_s=period_s), rate(counter.read))
        for name, counter in counters.items()
    }
    sampler = Sampler(powers, total=list(zones), period_s=period_s, checks=True)
    covers = "CPU packages and DRAM" if any(map(is_dram, zones)) else "CPU packages"
    return Instruments(counters=counters, powers=sampler, total=list(zones), covers=covers)


def rate(read: Callable[[], float]) -> Callable[[], float]:
    """Turns a reading of joules into one of watts: the mean power since the reading before; OSError where that is too
    near, or there is none."""
    last: tuple[int, float] | None = None

    def watts() -> float:
        nonlocal last
        now = stamped(read)
        before = last or now
        seconds = (now[0] - before[0]) * NANOSECOND
        last = now if seconds >= SHORTEST_S else before
        if last is before:
            raise OSError(f"{seconds:.4f} s since the reading before are too few ticks of the counter")
        return (now[1] - before[1]) / seconds

    return watts


def stamped(read: Callable[[], float]) -> tuple[int, float]:
    """A moment, and the joules then: read anew where it was held up, and OSError where it is held up each time."""
    for _ in range(TRIES):
        begun_ns, joules, ended_ns = time.monotonic_ns(), read(), time.monotonic_ns()
        if (ended_ns - begun_ns) * NANOSECOND < NEAR_S:
            return (begun_ns + ended_ns) // 2, joules
    raise OSError(f"each of {TRIES} readings took longer than {NEAR_S} s: at which moment it told is not known")


class Zone:
    """A RAPL counter that no longer wraps, as long as it is read once in each round."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj = self._total_uj = int(self._file.read_text())
        self._lock = threading.Lock()

    def read(self) -> float:
        with self._lock:
            now_uj = int(self._file.read_text())
            wrapped_uj = self._range_uj if now_uj < self._last_uj else 0
            self._total_uj += now_uj - self._last_uj + wrapped_uj
            self._last_uj = now_uj
            return self._total_uj / 1e6


def find_zones(powercap: Path) -> dict[str, Zone]:
    """The zones that make the total, by domain; RuntimeError, with the way out, where no package can be read.

    Core and uncore lie inside their package, psys holds all packages, and `intel-rapl-mmio` shows a package
    a second time: they are left out. So is a counter that stands at 0, which some virtual machines show.
    """
    try:
        names = {folder: name_of(folder) for folder in sorted(powercap.glob("intel-rapl:*"))}
        zones = {name: Zone(folder) for folder, name in names.items() if name}
    except PermissionError as error:
        raise RuntimeError(
            f"RAPL counts here, but {error.filename} is kept for root. Open it to all until the next boot: "
            "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
        ) from error
    except (OSError, ValueError) as error:
        raise RuntimeError(f"RAPL is here, but cannot be read: {error}") from error
    zones = {name: zone for name, zone in zones.items() if zone.read() > 0}
    if all(map(is_dram, zones)):
        raise RuntimeError(
            f"No CPU package counts its energy below {powercap}: an x86 machine of its own has RAPL "
            "(sudo modprobe intel_rapl_msr), a virtual machine and an ARM board have none."
        )
    return zones


def name_of(folder: Path) -> str | None:
    """The domain that a zone counts: cpu0, cpu1_die0, dram0; None for those that are no part of the total."""
    name = (folder / "name").read_text().strip()
    if package := re.fullmatch(r"package-(\d+)(?:-die-(\d+))?", name):
        number, die = package.groups()
        return f"cpu{number}" + (f"_die{die}" if die else "")
    if name == "dram":
        above = name_of(folder.with_name(folder.name.rpartition(":")[0]))
        return above and above.replace("cpu", "dram")
    return None


def domain(name: str) -> Domain:
    return Domain("counter", PERIOD_S, "DRAM of a CPU package" if is_dram(name) else "CPU package")


def is_dram(name: str) -> bool:
    return name.startswith("dram")
