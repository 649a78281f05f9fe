"""Numbers as text, also by filters of templates: three digits, units of a readable size, intervals and plurals."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from epochmeter.report.statistics import Estimate

ABSENT = "-"
DIGITS = 3  # significant digits of a number
MIN_DECIMAL, MAX_DECIMAL = 1e-4, 1e9  # smaller and larger numbers are shown as `1.15e-06`
MAX_PLUS_MINUS = 1.0  # relative half-width up to which an interval is written with a plus-minus sign
NEAR_ONE = 2.0  # ratio below which a change of a thousandth is shown
WIDEST = 10.0  # multiple of its value up to which an upper bound is written; above it, there are too few repeats


class Unit(NamedTuple):
    """A unit: its symbol, its size in the base unit, and the smallest value, in the base unit, that is shown in it."""

    name: str
    size: float
    start: float


UNITS = {
    "s": (Unit("ms", 1e-3, 0), Unit("s", 1, 0.1), Unit("min", 60, 180), Unit("h", 3600, 10_800)),
    "J": (Unit("mJ", 1e-3, 0), Unit("J", 1, 0.1), Unit("kJ", 1e3, 1e3), Unit("MJ", 1e6, 1e6)),
    "W": (Unit("mW", 1e-3, 0), Unit("W", 1, 0.1), Unit("kW", 1e3, 1e3)),
    "g": (Unit("mg", 1e-3, 0), Unit("g", 1, 0.1), Unit("kg", 1e3, 1e3), Unit("t", 1e6, 1e6)),
    "FLOP/s": (Unit("GFLOP/s", 1e9, 0), Unit("TFLOP/s", 1e12, 1e12)),
    "B": (Unit("B", 1, 0), Unit("kB", 1e3, 1e3), Unit("MB", 1e6, 1e6), Unit("GB", 1e9, 1e9)),
}
"""Base unit -> units of increasing size."""


def readable_unit(value: float, base: str) -> Unit:
    """Return the unit in which a value of a base unit is best read; the base unit itself if it has no others."""
    units = UNITS.get(base, (Unit(base, 1, 0),))
    if not value and base in UNITS:
        return next(unit for unit in units if unit.size == 1)
    return [unit for unit in units if unit.start <= abs(value)][-1]


def number(value: float | None, reference: float | None = None) -> str:
    """Format a number with three significant digits; those of `reference` if that is its total; `-` if it is absent."""
    if value is None or not math.isfinite(value):
        return ABSENT
    size = abs(value if reference is None else reference)
    if value and (0 < size < MIN_DECIMAL or size >= MAX_DECIMAL):
        return f"{value:.{DIGITS - 1}e}"
    exponent = int(f"{size:.{DIGITS - 1}e}".partition("e")[2])  # of the rounded number: 9.996 is 10.0
    decimals = min(6, max(0, DIGITS - 1 - exponent))
    text = f"{value:.{decimals}f}"
    return text if text.strip("-0.") else text.lstrip("-")


def quantity(value: float | None, base: str, reference: float | None = None) -> str:
    """Format a quantity in a readable unit: `58.6 min`, `774 kJ`, `2.30 GB`.

    The unit and the digits are those of `reference`, if given: for example the total of a part.
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    size = value if reference is None else reference
    unit = readable_unit(size, base)
    return f"{number(value / unit.size, size / unit.size)} {unit.name}".rstrip()


def percent(fraction: Estimate | float | None, decimals: int = 0) -> str:
    """Format a fraction as a percentage: `31 %`; an estimate with its interval: `95.0 % (94.1 to 95.9)`."""
    if fraction is None:
        return ABSENT
    if isinstance(fraction, int | float):
        return f"{100 * fraction:.{decimals}f} %" if math.isfinite(fraction) else ABSENT
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
    text = f"{number(factor * estimate.value, size)}{unit}"
    if estimate.low is None or estimate.high is None:
        return text
    if estimate.low > 0 and estimate.high > WIDEST * estimate.value:
        return f"{text} (few repeats)"
    return f"{text} ({number(factor * estimate.low, size)} to {number(factor * estimate.high, size)})"


def interval(estimate: Estimate | None, base: str, reference: float | None = None) -> str:
    """Format an estimate in a readable unit with its 95 % interval: `58.6 min ± 1.6 %`.

    An interval that is wide, or that includes zero, is written by its bounds: `0.12 s (-0.02 to 0.26)`.
    """
    if estimate is None:
        return ABSENT
    if estimate.low and estimate.low > 0 and estimate.high is not None:
        relative = max(estimate.high - estimate.value, estimate.value - estimate.low) / estimate.value
        if relative <= MAX_PLUS_MINUS:
            half_width = number(100 * relative) if relative >= 0.1 else f"{100 * relative:.1f}"
            return f"{quantity(estimate.value, base, reference)} ± {half_width} %"
    unit = readable_unit(estimate.value if reference is None else reference, base)
    return with_bounds(estimate, reference, unit=f" {unit.name}".rstrip(), factor=1 / unit.size)


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """Format a count with its noun: `1 run`, `3 runs`."""
    return f"{count:,} {noun if count == 1 else plural_noun or f'{noun}s'}"


def join_or_more(texts: Iterable[str], limit: int, separator: str = ", ") -> str:
    """Join the first `limit` texts, and count the others: `a, b, c, 4 more`."""
    listed = list(texts)
    more = [f"{len(listed) - limit:,} more"] if len(listed) > limit else []
    return separator.join([*listed[:limit], *more])
