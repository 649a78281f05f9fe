"""How often the verdicts of a report are wrong, and which differences they detect, by simulation.

    PYTHONPATH=src:tests:benchmarks python benchmarks/decisions/verdicts.py [--short] [simulations]

Times are lognormal. Noise of 1 % is the same for all configurations, or drawn from 0.5 to 4 % for each ("unequal"), or
4 % for the first one ("one noisy").
With drift, all times grow by 10 % over the sweep, whose order is random within each round. With shifts, each round is
slower or faster by 3 % (one standard deviation).

False alarms: sweeps of equal configurations of which any is called different. Power: configurations 5 % slower than the
best, or all 5 % slower than in an earlier sweep, that are called different.

Two sweeps: all or half of the configurations are 5 % slower than in an earlier sweep, with a noise of 2 %. The false
discovery rate is the mean fraction of equal configurations among those that are called different.

Coverage: sweeps of configurations in which the interval of the one that is named fastest contains its true time. Either
all are equal, or each is 0.5 % slower than the one before.

First sentence: sweeps whose answer names a configuration as the fastest without reservation ("Fastest: ..."), and those
that name a wrong one: any of equal configurations, or one that is not truly the fastest.

Gate: one configuration and its baseline in rounds of one sweep, with `gate.time=1.03` and a known ratio of their times.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from common.output import ARGUMENTS, print_table, sized
from sweeps import trained

from epochmeter.report.analyses.best import find_best, find_doubts
from epochmeter.report.analyses.gate import check_bounds
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import ranked_costs
from epochmeter.report.statistics import (
    ALPHA,
    false_discovery_rates,
    indistinguishable_from_best,
    pairwise_ratios,
    positive_means,
)

Sample = list[list[float]]


class Sweep(NamedTuple):
    """Times of each configuration in each round, and when each of these runs started."""

    times: Sample
    started: list[list[str]]


CONFIGURATIONS = (2, 4, 8, 16)
REPEATS = (2, 3, 5)
CHOSEN_FROM = (2, 8, 28)
NOISE = 0.01
SLOWER = 1.05
BOUND = 1.03
RATIOS = (1.0, BOUND, SLOWER)
STEPS = {"equal": 0.0, "1 % apart": 0.01, "5 % apart": 0.05}
SENTENCE_NOISES = sized((0.01, 0.03, 0.1), (0.03,))
SAMPLES = 1000  # per epoch of `trained`
IN_ROUNDS = {"order": "random"}
PAIRS = (2, 3, 5, 8, 12)
COMPARED = (4, 8, 12, 24)
TWICE_THE_NOISE = 0.02


def sweep(
    chance: random.Random,
    factors: Sequence[float],
    repeats: int,
    unequal: bool = False,
    drift: float = 0.0,
    shift: float = 0.0,
    noise: float = NOISE,
    first: float = 1.0,
) -> Sweep:
    """Return a simulated sweep; the noise of the first configuration is multiplied by `first`."""
    noises = [noise * math.exp(chance.uniform(math.log(0.5), math.log(4))) if unequal else noise for _ in factors]
    noises[0] *= first
    simulated = Sweep([[] for _ in factors], [[] for _ in factors])
    runs = len(factors) * repeats
    for turn in range(repeats):
        shifted = math.exp(chance.gauss(0, shift))
        for place, index in enumerate(chance.sample(range(len(factors)), len(factors))):
            number = turn * len(factors) + place
            growth = shifted * (1 + drift * number / max(1, runs - 1))
            simulated.times[index].append(factors[index] * growth * math.exp(chance.gauss(0, noises[index])))
            simulated.started[index].append(f"{number:03}")
    return simulated


def called_slower(simulated: Sweep) -> list[bool]:
    """Return which configurations a report calls different from the best."""
    times = simulated.times
    best = min(range(len(times)), key=lambda index: fmean(times[index]))
    rounds = [list(range(len(times[0])))] * len(times)
    ties = indistinguishable_from_best(times, best, rounds, simulated.started)
    return [place not in ties for place in range(len(times))]


def called_different(before: Sweep, after: Sweep) -> list[bool]:
    """Return which configurations a comparison of two sweeps calls different."""
    pairs = pairwise_ratios(list(zip(before.times, after.times, strict=True)))
    rates = false_discovery_rates([1.0 if p_value is None else p_value for _, p_value in pairs])
    return [rate <= ALPHA and not ratio.contains(1) for (ratio, _), rate in zip(pairs, rates, strict=True)]


def coverage(count: int, repeats: int, simulations: int, step: float) -> float:
    """Return the fraction of sweeps in which the interval of the fastest contains its true time."""
    chance, covered = random.Random(3), 0
    factors = [(1 + step) ** place for place in range(count)]
    for _ in range(simulations):
        times, _ = sweep(chance, factors, repeats)
        best = min(range(count), key=lambda index: fmean(times[index]))
        ties = len(indistinguishable_from_best(times, best))
        covered += positive_means(dict(enumerate(times)), dict.fromkeys(range(count), ties))[best].contains(
            factors[best]
        )
    return covered / simulations


def false_alarms(count: int, repeats: int, simulations: int, **noise: float) -> tuple[float, float]:
    """Return the fractions of sweeps, and of pairs of sweeps, with any false alarm."""
    chance, equal = random.Random(0), [1.0] * count
    alone = sum(any(called_slower(sweep(chance, equal, repeats, **noise))) for _ in range(simulations))
    pairs = sum(
        any(called_different(sweep(chance, equal, repeats, **noise), sweep(chance, equal, repeats, **noise)))
        for _ in range(simulations)
    )
    return alone / simulations, pairs / simulations


def power(count: int, repeats: int, simulations: int, **noise: float) -> tuple[float, float]:
    """Return the fractions of slower configurations that are detected, in a sweep and compared with an earlier one."""
    chance = random.Random(1)
    slower = [1.0, *[SLOWER] * (count - 1)]
    alone = [called_slower(sweep(chance, slower, repeats, **noise))[1:] for _ in range(simulations)]
    pairs = [
        called_different(
            sweep(chance, [1.0] * count, repeats, **noise), sweep(chance, [SLOWER] * count, repeats, **noise)
        )
        for _ in range(simulations)
    ]
    return tuple(fmean(map(fmean, detected)) for detected in (alone, pairs))  # type: ignore[return-value]


def detected_changes(factors: Sequence[float], repeats: int, simulations: int, **noise: float) -> tuple[float, float]:
    """Return the fraction of the changed configurations that are detected, and the false discovery rate."""
    chance, detected, false_rates = random.Random(4), [], []
    for _ in range(simulations):
        before, after = (sweep(chance, of, repeats, **noise) for of in ([1.0] * len(factors), factors))
        different = called_different(before, after)
        detected.append(fmean(called for called, factor in zip(different, factors, strict=True) if factor != 1))
        equal = [called for called, factor in zip(different, factors, strict=True) if factor == 1]
        false_rates.append(sum(equal) / max(1, sum(different)))
    return fmean(detected), fmean(false_rates)


def print_comparisons(simulations: int) -> None:
    """Print the power of a comparison of two sweeps, and its false discovery rate."""
    rows = []
    for changed, every in {"all": 1, "half": 2}.items():
        for name, unequal in {"2 %": False, "1 to 8 %": True}.items():
            for repeats in REPEATS:
                cells = []
                for count in COMPARED:
                    factors = [1.0 if place % every else SLOWER for place in range(count)]
                    noise = {"unequal": unequal, "noise": TWICE_THE_NOISE}
                    fractions = detected_changes(factors, repeats, simulations, **noise)
                    cells.append(percentages(fractions[:every]))
                rows.append([changed, name, str(repeats), *cells])
    columns = ("changed", "noise", "repeats", *(f"{count} configurations" for count in COMPARED))
    print_table("Two sweeps: changes detected, and false discovery rate, in %", columns, rows)


def gate_verdicts(ratio: float, repeats: int, simulations: int, **noise: float) -> dict[str, float]:
    """Return the fraction of each verdict on a configuration that takes `ratio` times the time of its baseline."""
    chance = random.Random(2)
    verdicts: Counter[str] = Counter()
    for _ in range(simulations):
        simulated = sweep(chance, (1.0, ratio), repeats, **noise)
        runs = [
            trained(
                100 * place + turn,
                100.0,
                batch=8 * (place + 1),
                repeat=turn,
                sweep={"order": "random", "repeats": repeats},
                steady={"e2e_s": time_s},
            )
            for place, times in enumerate(simulated.times)
            for turn, time_s in enumerate(times)
        ]
        starts = [text for texts in simulated.started for text in texts]
        runs = [replace(run, started=started) for run, started in zip(runs, starts, strict=True)]
        baseline, other = group_repeats(runs)
        (check,) = check_bounds([(baseline, other)], {"time": BOUND}, interleaved=True)
        verdicts[check.verdict] += 1
    return {verdict: count / simulations for verdict, count in verdicts.items()}


def print_gates(simulations: int) -> None:
    """Print how often a gate passes and is violated, by the true ratio and the number of rounds."""
    rows = []
    for ratio in RATIOS:
        for name, noise in {"1 %": {}, "1 %, drift": {"drift": 0.1}}.items():
            gates = [gate_verdicts(ratio, count, simulations, **noise) for count in PAIRS]
            cells = [percentages([gate.get("passed", 0), gate.get("violated", 0)]) for gate in gates]
            rows.append([str(ratio), name, *cells])
    columns = ("true ratio", "noise", *(f"{count} rounds" for count in PAIRS))
    print_table("Gate: passed and violated, in %", columns, rows)


def print_verdicts(simulations: int) -> None:
    """Print how often the verdicts of one sweep and of two are false alarms, and their power."""
    cases = {
        "equal noise": {},
        "unequal noise": {"unequal": True},
        "one noisy": {"first": 4.0},
        "drift": {"drift": 0.1},
        "shifts": {"shift": 0.03},
    }
    rows = []
    for verdict, measure in (("false alarms", false_alarms), ("power", power)):
        for name, noise in cases.items():
            # Drift and shifts make two sweeps that did not run at the same time differ in fact.
            sides = 1 if name in ("drift", "shifts") else 2
            for repeats in REPEATS:
                fractions = [measure(count, repeats, simulations, **noise)[:sides] for count in CONFIGURATIONS]
                rows.append([verdict, name, str(repeats), *map(percentages, fractions)])
    columns = ("verdict", "noise", "repeats", *(f"{count} configurations" for count in CONFIGURATIONS))
    print_table("Verdicts: false alarms and power, in one sweep and compared with an earlier one, in %", columns, rows)


def print_coverage(simulations: int) -> None:
    """Print how often the interval of the fastest configuration contains its true time."""
    rows = []
    for name, step in {"equal": 0.0, "0.5 % apart": 0.005}.items():
        for repeats in REPEATS:
            cells = [percentages([coverage(count, repeats, simulations, step)]) for count in CHOSEN_FROM]
            rows.append([name, str(repeats), *cells])
    columns = ("configurations", "repeats", *(f"chosen from {count}" for count in CHOSEN_FROM))
    print_table("Coverage of the interval of the fastest, in %", columns, rows)


def names_fastest(simulated: Sweep) -> int | None:
    """Return the index of the configuration that the first sentence of an answer names without reservation."""
    count = len(simulated.times)
    runs = [
        replace(
            trained(turn * count + index, SAMPLES / time_s, batch=2**index, repeat=turn, sweep=IN_ROUNDS),
            started=started,
        )
        for index, (times, starts) in enumerate(zip(*simulated, strict=True))
        for turn, (time_s, started) in enumerate(zip(times, starts, strict=True))
    ]
    ranked = ranked_costs(group_repeats(runs))
    best = find_best(ranked)[0]
    return None if find_doubts(ranked) or best.ties else best.configuration.numbers[0]


def first_sentences(count: int, repeats: int, simulations: int, step: float, noise: float) -> tuple[float, float]:
    """Return the fractions of sweeps whose first sentence names a fastest configuration, and a wrong one."""
    chance, factors = random.Random(5), [(1 + step) ** place for place in range(count)]
    named = [names_fastest(sweep(chance, factors, repeats, noise=noise)) for _ in range(simulations)]
    certain = [index for index in named if index is not None]
    wrong = [index for index in certain if index != 0 or not step]
    return len(certain) / simulations, len(wrong) / simulations


def print_first_sentences(simulations: int) -> None:
    """Print how often the first sentence of an answer names a fastest configuration, and a wrong one."""
    rows = []
    for name, step in STEPS.items():
        for noise in SENTENCE_NOISES:
            for repeats in (1, *REPEATS):
                cells = [first_sentences(count, repeats, simulations, step, noise) for count in CONFIGURATIONS[:3]]
                rows.append([name, f"{100 * noise:g} %", str(repeats), *map(percentages, cells)])
    columns = ("configurations", "noise", "repeats", *(f"{count} of them" for count in CONFIGURATIONS[:3]))
    print_table("First sentence: a fastest named, and a wrong one, in %", columns, rows)


def percentages(fractions: Iterable[float]) -> str:
    return ", ".join(f"{100 * fraction:.1f}" for fraction in fractions)


def main(simulations: int) -> None:
    for print_part in (print_verdicts, print_coverage, print_comparisons, print_first_sentences, print_gates):
        print_part(simulations)


if __name__ == "__main__":
    main(int(ARGUMENTS[0]) if ARGUMENTS else sized(1000, 10))
