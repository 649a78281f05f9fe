"""How well `power_limit=auto` chooses, on published traces and on simulated devices.

    PYTHONPATH=src:tests:benchmarks python benchmarks/decisions/power_limits.py [folder] [--short]

Traces: each row is a workload and a batch size on one GPU, with the time and the mean power of an epoch at each of its
power limits (tests/data/zeus, or another folder with files summary_power_<gpu>.csv). A probe returns the row's time and
power, with multiplied noise. The search knows the highest limit only.

Simulated devices have a power limit of 100 to 300 W, a part of each step that computation limits, its power without a
limit, and a power that the limit does not reduce, all drawn at random. Times and powers have noise, a linear drift from
probe to probe, and heat: times that grow by 3 % in the first probes. Some round their limits down to stairs, lose more
time below a limit (kink), or have the same time and power for a range of limits (plateau).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common.output import ARGUMENTS, print_table, sized

from epochmeter.power.limit_search import LimitSearch, Probe

TRACES = Path(__file__).parents[2] / "tests/data/zeus"
WORKLOAD = ("dataset", "network", "batch_size", "optimizer")
LEAST_LIMITS = 4
NOISES = (0.0, 0.005, 0.01, 0.02, 0.03)
SLOWDOWN = 1.1
DEVICES, LAW_DEVICES = 100, 200
DRIFT, HEAT = 0.001, 0.03
ROUNDING = 1e-9
LAWS = ("smooth", "stairs", "kink", "plateau")
COLUMNS = (
    "device", "noise", "bound", "searches", "within 1 %", "limits tried", "of", "probes", "regret: median", "95th pct.",
    "highest", "bound violated", "confidence", "covered", "saving held",
)  # fmt: skip


class Device(NamedTuple):
    """Time and mean power of training at each limit."""

    limits_w: Sequence[float]
    times_s: Sequence[float]
    powers_w: Sequence[float]

    @property
    def energies_j(self) -> list[float]:
        return [time * power for time, power in zip(self.times_s, self.powers_w, strict=True)]


class Outcome(NamedTuple):
    """One search: its regret is the excess energy of the chosen limit over that of the best allowed one."""

    regret: float
    tried: int
    limits: int
    probes: int
    is_violated: bool
    confidence: float
    is_covered: bool
    is_saving_held: bool


def main() -> None:
    folder = Path(ARGUMENTS[0]) if ARGUMENTS else TRACES
    rows = [(gpu, device) for gpu in sorted(folder.glob("summary_power_*.csv")) for device in read_rows(gpu)]
    rows = rows[:: sized(1, 20)]
    table = []
    for gpu, group in groupby(rows, key=lambda row: row[0]):
        table.append(cells(gpu.stem.removeprefix("summary_power_"), 0.0, None, [search(device) for _, device in group]))
    for noise in NOISES:
        for bound in (None, SLOWDOWN):
            chance = np.random.default_rng(0)
            outcomes = [search(device, noise, bound, chance) for _, device in rows]
            table.append(cells("all traces", noise, bound, outcomes))
    for noise in NOISES[1:]:
        for bound in (None, SLOWDOWN):
            chance = np.random.default_rng(0)
            devices = [simulated(chance) for _ in range(sized(DEVICES, 10))]
            outcomes = [search(device, noise, bound, chance, DRIFT, HEAT) for device in devices]
            table.append(cells("simulated", noise, bound, outcomes))
    for law in LAWS:
        for noise in (0.002, 0.01, 0.03):
            chance = np.random.default_rng(0)
            devices = [simulated(chance, 12.5, law) for _ in range(sized(LAW_DEVICES, 3))]
            outcomes = [search(device, noise, None, chance, DRIFT, HEAT) for device in devices]
            table.append(cells(law, noise, None, outcomes))
    print_table("Search for the power limit with the least energy", COLUMNS, table)


def read_rows(file: Path) -> list[Device]:
    """Return the workloads of a GPU that have enough limits."""
    with file.open() as opened:
        lines = sorted(csv.DictReader(opened), key=lambda line: [line[key] for key in WORKLOAD])
    devices = []
    for _, group in groupby(lines, key=lambda line: [line[key] for key in WORKLOAD]):
        numbers = sorted(tuple(float(line[key]) for key in ("power_limit", "time_per_epoch", "average_power"))
                         for line in group)  # fmt: skip
        if len(numbers) >= LEAST_LIMITS:
            devices.append(Device(*zip(*numbers, strict=True)))
    return devices


def simulated(chance: np.random.Generator, step_w: float = 25.0, law: str = "smooth") -> Device:
    """Draw a device: power = idle + computing x frequency^3, up to the limit; time = fixed part + part / frequency."""
    limits_w = np.arange(100.0, 301.0, step_w)
    idle_w, peak_w, computing = chance.uniform(30, 80), chance.uniform(110, 330), chance.uniform(0.2, 1.0)
    stair = int(chance.integers(2, 4)) if law == "stairs" else 1
    kept_w = np.repeat(limits_w[::stair], stair)[: len(limits_w)]
    if law == "plateau":
        first, last = sorted(chance.integers(0, len(limits_w), 2))
        kept_w[first : last + 1] = kept_w[first]
    times_s = 0.1 * (1 - computing + computing / np.minimum(1.0, (kept_w - idle_w) / (peak_w - idle_w)) ** (1 / 3))
    if law == "kink":
        kink_w, slope = chance.uniform(130, 250), chance.uniform(0.15, 1.2)
        times_s *= 1 + slope * np.maximum(0.0, kink_w - limits_w) / kink_w
    return Device([*limits_w], [*times_s], [*np.minimum(kept_w, peak_w)])


def search(
    device: Device, noise: float = 0.0, bound: float | None = None, chance: np.random.Generator | None = None,
    drift: float = 0.0, heat: float = 0.0,
) -> Outcome:  # fmt: skip
    """Search for the limit with the least energy, from the highest limit, and compare the choice with all limits."""
    times_s, energies_j = device.times_s, device.energies_j
    highest = len(times_s) - 1
    search = LimitSearch(device.limits_w, highest, lambda seconds, watts: seconds * watts, max_slowdown=bound)

    def factor() -> float:
        return math.exp(chance.normal(0, noise)) if chance else 1.0

    while (limit := search.next_limit()) is not None:
        number = len(search.probes)
        step_s = times_s[limit] * factor() * (1 + drift * number + heat * (1 - math.exp(-number / 4)))
        search.add(Probe(limit, step_s, step_s * device.powers_w[limit] * factor()))
    choice = search.choice()
    is_allowed = [time <= (bound or math.inf) * times_s[highest] for time in times_s]
    best = min(energy for energy, allowed in zip(energies_j, is_allowed, strict=True) if allowed)
    rivals = [energies_j[limit] for limit in search.tried if is_allowed[limit]]
    return Outcome(
        energies_j[choice.limit] / best - 1,
        len(search.tried),
        len(times_s),
        len(search.probes),
        not is_allowed[choice.limit],
        choice.confidence,
        energies_j[choice.limit] <= 1.01 * min(rivals),
        choice.saving[1] - ROUNDING
        <= 1 - energies_j[choice.limit] / energies_j[highest]
        <= choice.saving[2] + ROUNDING,
    )


def cells(name: str, noise: float, bound: float | None, outcomes: Sequence[Outcome]) -> list[str]:
    """Return a row of the table."""
    regrets, tried, limits, probes, violated, confidences, covered, held = map(np.array, zip(*outcomes, strict=True))
    return [
        name, f"{noise:.1%}", f"{bound} x time" if bound else "none", str(len(outcomes)),
        f"{np.mean(regrets <= 0.01):.1%}",
        f"{np.mean(tried):.2f}", f"{np.mean(limits):.1f}", f"{np.mean(probes):.1f}", f"{np.median(regrets):.1%}",
        f"{np.percentile(regrets, 95):.1%}", f"{max(regrets):.1%}", f"{np.mean(violated):.1%}",
        f"{np.mean(confidences):.1%}", f"{np.mean(covered):.1%}", f"{np.mean(held):.1%}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
