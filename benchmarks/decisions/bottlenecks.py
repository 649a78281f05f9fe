"""How often the bottleneck of a single run is wrong, by simulation.

    PYTHONPATH=src:tests:benchmarks python benchmarks/decisions/bottlenecks.py [--short] [simulations]

An epoch has two parts, compute and data stall, whose times vary independently from epoch to epoch with lognormal noise.
The verdict is wrong if it names only the smaller part, or only one of two equal parts. It is decided if it names only
the larger part; otherwise both are `about equal`, or have `no significant difference`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

from common.output import ARGUMENTS, print_table, sized

from epochmeter.results.bottleneck import COMPUTE, PREP_STALL, find_verdict

LENGTHS = (1, 2, 3, 5, 10)
NOISES = (0.01, 0.05, 0.1, 0.2)
SHARES = (0.5, 0.52, 0.55, 0.6, 0.7)
"""True fractions of the larger part, which is compute."""
NOISE, CORRELATIONS = 0.1, (0.5, 0.9)
"""Of autocorrelated epochs."""


def simulated_epochs(
    chance: random.Random, share: float, noise: float, count: int, correlation: float = 0.0
) -> list[dict[str, float]]:
    """Return the metrics of successive epochs, each of about one second."""
    epochs, deviations = [], [chance.gauss(0, 1) for _ in range(2)]
    for _ in range(count):
        compute_s, stall_s = (
            part * math.exp(noise * deviation) for part, deviation in zip((share, 1 - share), deviations, strict=True)
        )
        parts = {"compute_s": compute_s, "data_stall_s": stall_s, "copy_s": 0.0, "overhead_s": 0.0}
        epochs.append({f"epoch/{name}": value for name, value in {**parts, "e2e_s": compute_s + stall_s}.items()})
        rest = math.sqrt(1 - correlation**2)
        deviations = [correlation * deviation + rest * chance.gauss(0, 1) for deviation in deviations]
    return epochs


def verdict(epochs: Sequence[dict[str, float]], *, uses_spread: bool = True) -> str:
    """Return the recorded bottleneck of a run on samples in memory."""
    means = {name.replace("epoch/", "steady/"): fmean(epoch[name] for epoch in epochs) for name in epochs[0]}
    return find_verdict(means, "memory", "steady", epochs if uses_spread else None).bottleneck


def rates(
    share: float, noise: float, count: int, simulations: int, *, correlation: float = 0.0, uses_spread: bool = True
) -> tuple[float, float]:
    """Return the fractions of wrong and of decided verdicts."""
    chance, is_equal = random.Random(f"{share} {noise} {count} {correlation}"), share == SHARES[0]
    verdicts = [
        verdict(simulated_epochs(chance, share, noise, count, correlation), uses_spread=uses_spread)
        for _ in range(simulations)
    ]
    wrong = fmean(found == PREP_STALL or (is_equal and found == COMPUTE) for found in verdicts)
    return wrong, fmean(not is_equal and found == COMPUTE for found in verdicts)


def main(simulations: int) -> None:
    rows = []
    for noise in NOISES:
        for count in LENGTHS:
            cells = []
            for share in SHARES:
                wrong, decided = rates(share, noise, count, simulations)
                before, _ = rates(share, noise, count, simulations, uses_spread=False)
                cells.append(f"{100 * wrong:.1f}, {100 * decided:.0f} ({100 * before:.1f})")
            rows.append([f"{100 * noise:g} %", str(count), *cells])
    columns = ("noise", "epochs", *(f"compute {100 * share:g} %" for share in SHARES))
    print_table("Bottleneck of a run: wrong %, decided % (wrong % without the spread of the epochs)", columns, rows)
    rows = []
    for correlation in CORRELATIONS:
        for count in LENGTHS[1:]:
            found = [rates(share, NOISE, count, simulations, correlation=correlation) for share in SHARES]
            rows.append([f"{correlation:g}", str(count), *(f"{100 * a:.1f}, {100 * b:.0f}" for a, b in found)])
    columns = ("autocorrelation", *columns[1:])
    print_table("Bottleneck of a run of autocorrelated epochs: wrong %, decided %", columns, rows)


if __name__ == "__main__":
    main(int(ARGUMENTS[0]) if ARGUMENTS else sized(1000, 10))
