"""Energy by phase where it is known: how far off it is, how sure it is, and how often it is absent."""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from known import FOUR, TWO, Epoch, Sensor, epoch
from rich.console import Console
from rich.table import Table

from trainmeter.power.phases.energy import PhaseEnergy, phase_energy

SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
PHASES = ("stall", "copy", "compute", "overhead")
MINOR = 0.05
"""A phase with a smaller share of the gross energy has its errors shown as shares of so much of that."""
SENSORS = {
    "instant": Sensor(lag_s=0.05),
    "instant, noisy": Sensor(lag_s=0.05, noise_w=1.0, step_w=0.4),
    "100 ms": Sensor(averaging_s=0.1),
    "100 ms, late": Sensor(averaging_s=0.1, lag_s=0.05),
    "1 s, late": Sensor(averaging_s=1.0, lag_s=0.05),
    "fades, 50 ms": Sensor(averaging_s=0.05, lag_s=0.05, fading=True),
    "held for 97 ms": Sensor(held_s=0.097),
}
WAVES: dict[str, dict[str, Any]] = {
    "four phases": {"shares": FOUR},
    "stall and compute": {"shares": TWO},
    "the same, warming by 10 %, stall growing": {"shares": TWO, "warming": 0.1, "ramp": 0.6},
    "all steps alike": {"shares": FOUR, "uneven": 0.0},
}
STEPS_S = (0.004, 0.06, 0.5)


class Trial(NamedTuple):
    """A known epoch, what was told of it, and the seconds of a core that this took."""

    known: Epoch
    told: PhaseEnergy
    took_s: float


def main() -> None:
    columns = ("wave", "step ms", "sensor", "method", *(f"{phase} %" for phase in PHASES), "covered", "absent", "s")
    table = Table(*columns, title=f"Energy by phase: error (half width), {SEEDS} epochs of 60 s, or of 300 averagings")
    given: list[Trial] = []
    for wave, of in WAVES.items():
        for step_s in STEPS_S:
            for name, sensor in SENSORS.items():
                trials = [tried(seed, step_s, sensor, of) for seed in range(SEEDS)]
                table.add_row(wave, f"{1000 * step_s:g}", name, *cells(trials))
                given += [trial for trial in trials if not trial.told.reason]
    Console(width=200).print(table)
    print(f"Intervals that hold what was used: {covered(given):.1%} of {len(PHASES) * len(given)}.")


def tried(seed: int, step_s: float, sensor: Sensor, of: dict[str, Any]) -> Trial:
    window_s = max(60.0, 300 * sensor.averaging_s)
    known = epoch(seed=seed, window_s=window_s, step_s=step_s, sensor=sensor, **of)
    begun = time.process_time()
    told = phase_energy(*known.given(), seed=seed)
    return Trial(known, told, time.process_time() - begun)


def cells(trials: list[Trial]) -> Iterator[str]:
    """Method, error and half width of each phase, coverage, how many are absent, and what one took."""
    given = [trial for trial in trials if not trial.told.reason]
    yield ", ".join(method for method, _ in Counter(str(trial.told.method) for trial in given).most_common())
    for phase in PHASES:
        errors = [error(trial, phase) / scale_j(trial, phase) for trial in given]
        widths = [trial.told.half_width_j[phase] / scale_j(trial, phase) for trial in given]
        yield f"{statistics.mean(errors):.1%} ({statistics.mean(widths):.1%})" if given else ""
    yield f"{covered(given):.0%}" if given else ""
    yield str(len(trials) - len(given) or "")
    yield f"{statistics.median(trial.took_s for trial in trials):.2f}"


def error(trial: Trial, phase: str) -> float:
    return abs(trial.told.energy_j[phase] - trial.known.known_j[phase])


def scale_j(trial: Trial, phase: str) -> float:
    return max(trial.known.known_j[phase], MINOR * trial.known.gross_j)


def covered(given: list[Trial]) -> float:
    return statistics.mean(
        error(trial, phase) <= trial.told.half_width_j[phase] + 1e-9 for trial in given for phase in PHASES
    )


if __name__ == "__main__":
    main()
