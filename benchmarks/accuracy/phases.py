"""Energy by phase on epochs whose energy by phase is known: how much of it is given, and how often it is wrong.

An energy is wrong if its true value is outside the stated interval by more than 1 % of it. Power is flat within the
phases, or has structure: of the calibration waves, by which the method's constants were chosen, and of the held-out
waves. Each epoch is given to the method twice: with the sensor's averaging time and lag, known to 3 % and 0.5 ms, and
without, so that they are estimated from the samples. An INA3221 that averages is a low-pass filter.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from common.output import ARGUMENTS, print_table, sized
from power.known_phases import FOUR, HELD_OUT, TWO, Profile, Sensor, elapsed, epoch, facts

from epochmeter.power.phases.phase_energy import phase_energy
from epochmeter.power.phases.step_timeline import PHASES

SEEDS = int(ARGUMENTS[0]) if ARGUMENTS else 1
FIRST_SEED = 100
WRONG = 0.01
NEGLIGIBLE = 0.002  # phases with a smaller fraction of the gross energy are not counted
SENSORS = {
    "instant, 50 ms late": Sensor(lag_s=0.05),
    "instant, noise of 1 W": Sensor(lag_s=0.02, noise_w=1.0, step_w=0.4),
    "averages 50 ms": Sensor(averaging_s=0.05),
    "averages 100 ms": Sensor(averaging_s=0.1),
    "averages 100 ms, 50 ms late": Sensor(averaging_s=0.1, lag_s=0.05),
    "INA238, Thor (50 ms)": Sensor(averaging_s=0.0505, held_s=0.0505),
    "INA3221, 4 samples (26 ms)": Sensor(averaging_s=0.0264, is_filter=True),
    "INA3221, 16 samples (106 ms)": Sensor(averaging_s=0.1056, is_filter=True),
    "INA3221, 64 samples (422 ms)": Sensor(averaging_s=0.4224, is_filter=True),
    "renewed every 97 ms": Sensor(held_s=0.097),
    "A100, H100 (25 of 101 ms)": Sensor(averaging_s=0.025, held_s=0.1011, period_s=0.05),
}


def compute_in_two_levels(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """A forward pass at 11 W, then a backward pass at 17 W."""
    watts[:, 3] = np.where(elapsed(lasts_s, 3)[0] < 0.35, 11.0, 17.0)


def stall_decays(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """A stall's power falls exponentially from 10 to 3 W."""
    watts[:, 1] = 3 + 7 * np.exp(-3 * elapsed(lasts_s, 1)[0])


def compute_peaks_at_its_end(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """The optimizer step draws 22 W in the last eighth of compute."""
    watts[:, 3] = np.where(elapsed(lasts_s, 3)[0] > 0.875, 22.0, 13.0)


def steps_differ(watts: np.ndarray, lasts_s: np.ndarray, rng: np.random.Generator) -> None:
    """Long compute draws less, and each step's power is scaled by a random factor."""
    watts[:, 3] = np.clip(15 - 25 * (lasts_s[:, 3] / lasts_s[:, 3].mean() - 1), 5.0, 30.0)[:, None]
    watts *= rng.uniform(0.7, 1.3, (len(watts), 1, 1))


CALIBRATION: dict[str, Profile] = {
    "compute in two levels": compute_in_two_levels,
    "stall decays": stall_decays,
    "compute peaks at its end": compute_peaks_at_its_end,
    "steps differ": steps_differ,
}
"""Power by which the constants of the method were chosen; its structure differs from the held-out waves."""
WAVES = {
    "flat": ("flat", None),
    **{name: ("calibration", profile) for name, profile in CALIBRATION.items()},
    **{name: ("held out", profile) for name, profile in HELD_OUT.items()},
}
STEPS_S = sized((0.02, 0.06, 0.5, 2.5), (0.5,))
DURATIONS = {0.0: "< 0.05 s", 0.05: "0.05 to 0.2 s", 0.2: "0.2 to 0.8 s", 0.8: "> 0.8 s"}
COLUMNS = ("energies", "given", "wrong", "worst", "median interval (plus or minus)")
KNOWN = {True: "known sensor", False: "estimated sensor"}


class Outcome(NamedTuple):
    """One phase of one epoch: whether its energy was given, and shares of its true value."""

    labels: dict[str, str]
    outside: float | None
    half_width: float | None


def main() -> None:
    sensors = dict(list(SENSORS.items())[: sized(None, 2)])
    waves = dict(list(WAVES.items())[:: sized(1, 5)])
    outcomes: list[Outcome] = []
    for (wave, step_s, sensor), shares in product(product(waves, STEPS_S, sensors), (FOUR, TWO)):
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
            outcomes += tried(wave, step_s, sensor, shares, seed)
    for label in ("power", "wave", "sensor", "phase lasts"):
        rows = [[*key, *cells(of)] for key, of in grouped(outcomes, label).items()]
        print_table(f"Energy by phase, by {label}", ("", label, *COLUMNS), rows)


def tried(wave: str, step_s: float, name: str, shares: tuple[float, ...], seed: int) -> Iterator[Outcome]:
    kind, profile = WAVES[wave]
    truth = epoch(seed=seed, step_s=step_s, sensor=SENSORS[name], shares=shares, profile=profile)
    for is_known in KNOWN:
        answer = phase_energy(*truth.given(facts(SENSORS[name], seed) if is_known else None))
        for phase, true_j in truth.known_j.items():
            if true_j < NEGLIGIBLE * truth.gross_j:
                continue
            labels = {"known": KNOWN[is_known], "power": kind, "wave": wave, "sensor": name}
            labels["phase lasts"] = lasts(step_s * shares[PHASES.index(phase)])
            if phase not in answer.energy_j:
                yield Outcome(labels, None, None)
                continue
            half_width_j = answer.half_width_j[phase]
            outside_j = max(0.0, abs(answer.energy_j[phase] - true_j) - half_width_j)
            yield Outcome(labels, outside_j / true_j, half_width_j / true_j)


def lasts(seconds: float) -> str:
    """The mean duration of a phase, in ranges."""
    return DURATIONS[max(least_s for least_s in DURATIONS if least_s <= seconds)]


def grouped(outcomes: list[Outcome], label: str) -> dict[tuple[str, str], list[Outcome]]:
    groups = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.labels["known"], outcome.labels[label]].append(outcome)
        groups[outcome.labels["known"], "all"].append(outcome)
    return dict(sorted(groups.items(), key=lambda group: (group[0][0] != KNOWN[True], group[0][1] == "all")))


def cells(outcomes: list[Outcome]) -> tuple[str, ...]:
    outside = [outcome.outside for outcome in outcomes if outcome.outside is not None]
    widths = [outcome.half_width for outcome in outcomes if outcome.half_width is not None]
    if not outside:
        return str(len(outcomes)), "0", "", "", ""
    wrong = sum(share > WRONG for share in outside)
    return (
        str(len(outcomes)),
        f"{len(outside)} ({len(outside) / len(outcomes):.0%})",
        f"{wrong} ({wrong / len(outside):.1%})",
        f"{max(outside):.1%}",
        f"{statistics.median(widths):.1%}",
    )


if __name__ == "__main__":
    main()
