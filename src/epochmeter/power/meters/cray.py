"""Energy of a node of an HPE Cray system, from the counters of its controller: /sys/cray/pm_counters.

The node's controller, outside of the operating system, renews all files about ten times per second (`raw_scan_hz`). A
file of a measurement has a number, its unit and, on EX systems, the time of the scan: `1234567 J 1700000000123456 us`.
`freshness` counts the scans, `startup` changes when the controller restarts, and `generation` when a power cap changes.
"""

import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.energy_codes import EnergyCode, UncountedError, energy_problem
from epochmeter.machine.host import CRAY_COUNTERS as FOLDER
from epochmeter.machine.slurm import sharing_problem
from epochmeter.power.cross_checks import CrossCheck
from epochmeter.power.instrument import NODE_SCOPE, Domain, Instrument
from epochmeter.power.meter import EnergyMeter, unmetered
from epochmeter.power.meters.sum import open_gpus
from epochmeter.power.sampler import Sampler
from epochmeter.power.uncertainty import Response, Sensors
from epochmeter.shared.problem import MachineError, problem_of

NODE, SAMPLED = "node", "node_sampled"
SCOPES = {
    NODE: NODE_SCOPE,
    "cpu": "CPUs of the node",
    "memory": "memory of the node",
}
WHOLE = ("freshness", "energy", "power")  # files of the whole node
SCAN_HZ = 10.0  # usual rate, if `raw_scan_hz` is missing
STALE_SCANS = 5.0  # the counters are stale if this many scans are missing
MAX_PART_AGE_S = 2.0  # longest age of the counter of a part, which some systems scan less often
STEP_J, STEP_W = 1.0, 1.0  # resolution of the files
RESET_J = 1e9
"""Subtracted after a restart of the controller, so that the counter runs backwards: more than any run uses."""


class Measurement(NamedTuple):
    """The content of a file: joules or watts, and the time of the scan by the controller's clock, if it is stated."""

    value: float
    at_us: int | None


class CrayCounters:
    """The counters of this node; OSError if they cannot be read.

    Attributes:
        period_s: How often the controller renews them.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / FOLDER
        self.period_s = 1 / (_number(self._folder / "raw_scan_hz") or SCAN_HZ)
        self._startup = _text(self._folder / "startup")
        self._seen: dict[str, tuple[object, float]] = {}  # last sign of a scan by file, and when it was first seen
        self._lock = threading.Lock()

    def domains(self) -> dict[str, str]:
        """Return the domains with a counter, and the beginning of the names of their files."""
        names = sorted(file.name.removesuffix("_energy") for file in self._folder.glob("*_energy"))
        accelerators = [name for name in names if re.fullmatch(r"accel\d+", name)]
        parts = [name for name in ("cpu", "memory") if name in names]
        known = {NODE: "energy", **{name: f"{name}_energy" for name in (*parts, *accelerators)}}
        return {name: file for name, file in known.items() if (self._folder / file).exists()}

    def joules(self, file: str) -> float:
        """Read a counter; `UncountedError` if it is stale. After a restart of the controller it runs backwards."""
        joules = self._read(file, "J")
        is_restarted = _text(self._folder / "startup") != self._startup
        return joules - RESET_J if is_restarted else joules

    def watts(self) -> float:
        """Read the node's power; `UncountedError` if it is stale."""
        return self._read("power", "W")

    def conditions(self) -> dict[str, str]:
        """Return what must not change within a window: the generation of the power caps."""
        generation = _text(self._folder / "generation")
        return {"the generation of the node's power caps": generation} if generation else {}

    def _read(self, file: str, unit: str) -> float:
        measured = parse(_text(self._folder / file), unit, self._folder / file)
        self._check_fresh(file, measured.at_us)
        return measured.value

    def _check_fresh(self, file: str, at_us: int | None) -> None:
        """Raise `UncountedError` if neither the file nor the count of scans was renewed for several scans."""
        freshness, now_s = _text(self._folder / "freshness"), time.monotonic()
        signs = {"freshness": freshness or None, file: at_us}
        with self._lock:
            for name, sign in signs.items():
                if sign is None:  # not stated by this system
                    continue
                seen, since_s = self._seen.get(name, (None, now_s))
                if seen != sign:
                    self._seen[name] = sign, now_s
                elif now_s - since_s > self._longest_s(name):
                    text = f"{self._folder / name} was not renewed for {now_s - since_s:.1f} s"
                    raise UncountedError(EnergyCode.STALE, text)

    def _longest_s(self, name: str) -> float:
        """The longest time without a new scan after which a file is stale."""
        scans_s = STALE_SCANS * self.period_s
        return scans_s if name in WHOLE else max(scans_s, MAX_PART_AGE_S)


def parse(text: str, unit: str, file: Path) -> Measurement:
    """Return the measurement in a file; ValueError if it has another form or unit."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]+)(?:\s+(\d+)\s*us)?", text)
    if match is None or match[2] != unit:
        raise ValueError(f"{file} is `{text}`, not a number in {unit}")
    return Measurement(float(match[1]), int(match[3]) if match[3] else None)


def open_cray(
    *, gpus: Sequence[str], root: Path, period_s: float = 0.1, cross_check: bool = True, sensors: Sensors | None = None
) -> EnergyMeter:
    """Open the counters of this node; of a node that is shared with other jobs, the meter of the GPUs used instead.

    `cross_check` also samples the node's power, outside of the total.
    """
    if others := sharing_problem():
        return _of_gpus(gpus, root, sensors, others.message) if gpus else unmetered(others)
    try:
        counters = CrayCounters(root)
        opened = {name: _instrument(counters, name, file) for name, file in counters.domains().items()}
        if NODE not in opened:
            missing = energy_problem(EnergyCode.NO_SENSOR, f"no counter {root / FOLDER / 'energy'}: not a Cray system")
            return unmetered(missing)
        if not opened[NODE].read() > 0:
            raise UncountedError(EnergyCode.COUNTER_STOPPED, f"the counter {root / FOLDER / 'energy'} is 0")
    except PermissionError as error:
        return unmetered(energy_problem(EnergyCode.NO_PERMISSION, f"cannot read {error.filename}: {error.strerror}"))
    except UncountedError as error:
        return unmetered(energy_problem(error.code, str(error)))
    except (OSError, ValueError, MachineError) as error:
        return unmetered(problem_of(error))
    return _meter(counters, opened, period_s, cross_check=cross_check)


def _meter(
    counters: CrayCounters, opened: Mapping[str, Instrument], period_s: float, *, cross_check: bool
) -> EnergyMeter:
    # An accelerator may include the CPU of its module, so that the two are not added.
    parts = [tuple(name for name in opened if name.startswith(kinds)) for kinds in (("cpu", "memory"), "accel")]
    checks = [CrossCheck(names, "at most", (NODE,)) for names in parts if names]
    powers = {}
    if cross_check:
        with suppress(OSError, ValueError):  # older systems have counters only
            counters.watts()
            scope = f"{SCOPES[NODE]}, sampled as a cross-check"
            domain = Domain("sampled", period_s, scope, STEP_W, _response(counters))
            powers[SAMPLED] = Instrument(domain, counters.watts)
            checks.append(CrossCheck((SAMPLED,), "equal to", (NODE,)))
    return EnergyMeter(
        counters=opened,
        powers=Sampler(powers, total=list(powers), period_s=period_s, checks=True) if powers else None,
        total=[NODE],
        covers=SCOPES[NODE],
        cross_checks=checks,
        conditions=counters.conditions,
    )


def _instrument(counters: CrayCounters, name: str, file: str) -> Instrument:
    scope = SCOPES.get(name, f"accelerator {name.removeprefix('accel')} of the node")
    domain = Domain("counter", counters.period_s, scope, STEP_J, _response(counters))
    return Instrument(domain, partial(counters.joules, file))


def _response(counters: CrayCounters) -> Response:
    """The response of the node's sensors: HPE documents point-in-time power at each scan, so it may miss a part."""
    return Response(averaging_s=None, renewal_s=counters.period_s)


def _of_gpus(gpus: Sequence[str], root: Path, sensors: Sensors | None, why: str) -> EnergyMeter:
    """Open the meter of the GPUs used, with the reason why the node's counters are not used."""
    meter = open_gpus(gpus=gpus, root=root, sensors=sensors)
    own = meter.energy["reason"]
    meter.energy["reason"] = "; ".join(filter(None, [f"the counters of the node are not used: {why}", own]))
    return meter


def _text(file: Path) -> str:
    """Return the content of a file; empty if it does not exist."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def _number(file: Path) -> float | None:
    match = re.match(r"\d+(\.\d+)?", _text(file))
    return float(match[0]) if match else None
