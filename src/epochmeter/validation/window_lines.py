"""Checks of energies of windows: that they add up, and that the stated uncertainty covers their errors."""

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from epochmeter.power.instrument import shortest_s
from epochmeter.power.uncertainty import Response
from epochmeter.shared.units import percent
from epochmeter.validation.bench import Bench
from epochmeter.validation.line import Finding, Found, Untestable
from epochmeter.validation.power_lines import no_instruments
from epochmeter.validation.replay import Replay, Window
from epochmeter.validation.sensor_response import Measured

WINDOWS_S = (1.0, 2.0, 4.0)  # lengths of the windows whose stated uncertainty is checked, if the sensor allows them
MIN_WINDOWS = 12
KNOWN = 0.01  # error of the energy by the load's times, as a fraction: its power is not quite constant
COVERED, DOUBT = 0.95, 0.002  # stated coverage, and probability of fewer windows within, at which it is not believed
ADDITIVE = 1e-3  # largest difference of a window and the sum of its parts, as a fraction


def windows(bench: Bench, responses: dict[str, Response]) -> tuple[Replay, list[tuple[float, float]]] | Untestable:
    """Return a replay of the switched load with consecutive windows, or why it has none."""
    for name in bench.total:
        if isinstance(reason := bench.responses[name], str):
            return Untestable(why=f"{name}: {reason}")
    domains = [bench.instruments[name].domain for name in bench.total]
    measured = [bench.used_response(name) for name in bench.total]
    with_measured = [
        domain._replace(response=response or domain.response)
        for domain, response in zip(domains, measured, strict=True)
    ]
    shortest = max(map(shortest_s, [*domains, *with_measured]))
    lengths = [length for length in WINDOWS_S if length >= shortest] or [1.2 * shortest]
    window_s, at_s = bench.switched.timeline.window_s, 1.0
    spans: list[tuple[float, float]] = []
    while at_s + (length := lengths[len(spans) % len(lengths)]) < window_s - 1.0 - shortest:
        spans.append((at_s, at_s + length))
        at_s += length
    if len(spans) < MIN_WINDOWS:
        why = f"only {len(spans)} windows of at least {shortest:.3g} s, {MIN_WINDOWS} needed"
        return Untestable(why=why, hint="give more `minutes=`", again=True)
    borders_s = sorted({border_s for span in spans for border_s in span})
    working = {name: bench.instruments[name] for name in bench.instruments if not bench.problem(name)}
    return Replay(bench.switched, working, bench.total, responses, borders_s), spans


def used_responses(bench: Bench) -> dict[str, Response]:
    """Return the measured responses that runs use, by domain."""
    return {name: response for name in bench.instruments if (response := bench.used_response(name))}


def additivity(bench: Bench) -> Iterator[Found]:
    """The energy of a window is the sum of those of its parts."""
    yield from no_instruments(bench)
    if not bench.instruments:
        return
    replayed = windows(bench, used_responses(bench))
    if isinstance(replayed, Untestable):
        yield replayed
        return
    replay, spans = replayed
    errors = []
    for first, second in pairwise(spans):
        energies_j = [replay.window(*span).energy.joules for span in (first, second, (first[0], second[1]))]
        sums_j = [sum(joules.get(name, math.nan) for name in bench.total) for joules in energies_j]
        errors.append(abs(sums_j[0] + sums_j[1] - sums_j[2]) / abs(sums_j[2]))
    value = max(errors, key=lambda error: math.inf if math.isnan(error) else error)
    yield Finding(value=value, unit="%", high=ADDITIVE, failure="energy is lost or counted twice between windows")


def coverage(bench: Bench) -> Iterator[Found]:
    """How many windows are within their stated uncertainty of the energy that the load's times give."""
    yield from no_instruments(bench)
    if not bench.instruments:
        return
    used = covered(bench, used_responses(bench))
    if isinstance(used, Untestable):
        yield used
        return
    assumed = covered(bench, {})
    fraction, half_width, count = used
    if half_width < KNOWN:
        known = f"the energy of the load is known within {percent(KNOWN)}"
        yield Untestable(why=f"the stated uncertainty is {percent(half_width)}; {known}")
        return
    details = {"windows": float(count), "median_half_width": half_width}
    if not isinstance(assumed, Untestable):
        details |= {"assumed_coverage": assumed[0], "assumed_median_half_width": assumed[1]}
    yield Finding(
        value=fraction, unit="%", low=fewest_covered(count) / count, details=details,
        failure="more windows are outside of their stated uncertainty than 5 % and chance allow",
    )  # fmt: skip


def covered(bench: Bench, responses: dict[str, Response]) -> tuple[float, float, int] | Untestable:
    """Return the fraction of windows within their uncertainty, its median as a fraction, and their number."""
    replayed = windows(bench, responses)
    if isinstance(replayed, Untestable):
        return replayed
    replay, spans = replayed
    measured = [replay.window(*span) for span in spans]
    stated = [window for window in measured if "energy_j" in window.energy.metrics]
    if len(stated) < MIN_WINDOWS:
        return Untestable(why="; ".join(measured[0].energy.notes) or "windows have no energy")
    known_j = [_known_j(bench, window) for window in stated]
    halves_j = [window.energy.metrics["energy_uncertainty_j"] for window in stated]
    within = [
        abs(window.energy.metrics["energy_j"] - true_j) <= half_j + KNOWN * true_j
        for window, true_j, half_j in zip(stated, known_j, halves_j, strict=True)
    ]
    relative = statistics.median(half_j / true_j for half_j, true_j in zip(halves_j, known_j, strict=True))
    return statistics.fmean(within), relative, len(stated)


def _known_j(bench: Bench, window: Window) -> float:
    """Return the energy of a window by the load's times and the fitted power of load and pause."""
    timeline = bench.switched.timeline
    found = [bench.responses[name] for name in bench.total]
    begin_s, end_s = np.array([window.begin_s]), np.array([window.end_s])
    return sum(float(each.joules(timeline, begin_s, end_s)[0]) for each in found if isinstance(each, Measured))


def fewest_covered(count: int) -> int:
    """Return the smallest number of covered windows that a coverage of 95 % still explains."""
    probability, covered_count = 0.0, -1
    while probability < DOUBT:
        covered_count += 1
        probability += (
            math.comb(count, covered_count) * COVERED**covered_count * (1 - COVERED) ** (count - covered_count)
        )
    return covered_count
