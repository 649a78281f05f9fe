"""Estimates, titles and lists as text, also by filters of templates. Numbers: `results/quantities.py`."""

import math
from collections.abc import Iterable

from epochmeter.report.statistics import Estimate
from epochmeter.results.metrics import find
from epochmeter.results.quantities import ABSENT, number, readable_unit, within
from epochmeter.shared import units

MAX_PLUS_MINUS = 1.0  # relative half-width up to which an interval is written with a plus-minus sign
NEAR_ONE = 2.0  # ratio below which a change of a thousandth is shown
WIDEST = 10.0  # multiple of its value up to which an upper bound is written; above it, there are too few repeats


def beside(value: float | None, base: str, other: float | None) -> str:
    """Format a quantity next to another one, in the unit of the larger: with a fourth digit, to check their ratio."""
    if value is None or other is None:
        return ABSENT
    unit = readable_unit(max(value, other), base)
    return f"{number(value / unit.size, value / unit.size / 10)} {unit.name}"


def percent(fraction: Estimate | float | None, decimals: int | None = None) -> str:
    """Format a fraction as a percentage: `31 %`, `3.1 %`; an estimate with its interval: `95.0 % (94.1 to 95.9)`."""
    if fraction is None:
        return ABSENT
    if isinstance(fraction, int | float):
        return units.percent(fraction, decimals) if math.isfinite(fraction) else ABSENT
    return with_bounds(fraction, unit=" %", factor=100)


def times(ratio: Estimate) -> str:
    """Format a ratio: `1.90 times (1.88 to 1.92)`."""
    return with_bounds(ratio, unit=" times")


def ratio(estimate: Estimate | None, unit: str = "") -> str:
    """Format a ratio with its interval, and with three decimals if it is near 1: `1.050 (1.034 to 1.066)`."""
    return with_bounds(estimate, 0.1 if estimate and estimate.value < NEAR_ONE else None, unit=unit)


def with_bounds(
    estimate: Estimate | None, reference: float | None = None, *, unit: str = "", factor: float = 1.0
) -> str:
    """Format an estimate: `5.30 (4.90 to 5.70)`, or state that it needs more repeats; `reference` sets the digits."""
    if estimate is None:
        return ABSENT
    size = factor * (estimate.value if reference is None else reference)
    if estimate.low is None or estimate.high is None:
        return f"{number(factor * estimate.value, size)}{unit}"
    if estimate.low > 0 and estimate.high > WIDEST * estimate.value:
        return f"{number(factor * estimate.value, size)}{unit} (few repeats)"
    half = factor * (estimate.high - estimate.low) / 2
    value, low, high = (number(factor * bound, size, half) for bound in (estimate.value, estimate.low, estimate.high))
    return f"{value}{unit} ({low} to {high})"


def interval(estimate: Estimate | None, base: str, reference: float | None = None) -> str:
    """Format an estimate in a readable unit with its 95 % interval: `58.6 min ± 1.6 %`.

    An interval that is wide, or that includes zero, is written by its bounds: `0.12 s (-0.02 to 0.26)`.
    """
    if estimate is None:
        return ABSENT
    if estimate.low and estimate.low > 0 and estimate.high is not None:
        half = max(estimate.high - estimate.value, estimate.value - estimate.low)
        if half <= MAX_PLUS_MINUS * estimate.value:
            return within(estimate.value, half, base, reference)
    unit = readable_unit(estimate.value if reference is None else reference, base)
    return with_bounds(estimate, reference, unit=f" {unit.name}".rstrip(), factor=1 / unit.size)


def metric_title(name: str) -> str:
    """Return the title of a metric at the beginning of a line: `Time per epoch`."""
    return as_sentence(find(name).title)


def metric_column(name: str, currency: str = "") -> str:
    """Return the title of a metric's column with its unit: `time (s)`, `samples/s`, `cost (EUR)`."""
    metric = find(name)
    unit = currency if metric.unit == "currency" else metric.symbol
    if unit.startswith(metric.short):
        return unit
    return f"{metric.short} ({unit})" if unit else metric.short


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """Format a count with its noun: `1 run`, `3 runs`."""
    return f"{count:,} {noun if count == 1 else plural_noun or f'{noun}s'}"


def of_total(count: int, total: int) -> str:
    """Format which of some runs a sentence is about: `the run`, `both runs`, `all 6 runs`, `2 of 6 runs`."""
    if count < total:
        return f"{count:,} of {total:,} runs"
    return "the run" if total == 1 else "both runs" if total == 2 else f"all {total:,} runs"


def as_sentence(text: str) -> str:
    """Return a text with an upper-case first letter."""
    return text[:1].upper() + text[1:]


def join_or_more(texts: Iterable[str], limit: int, separator: str = ", ") -> str:
    """Join the first `limit` texts, and count the others: `a, b, c, 4 more`."""
    listed = list(texts)
    more = [f"{len(listed) - limit:,} more"] if len(listed) > limit else []
    return separator.join([*listed[:limit], *more])
