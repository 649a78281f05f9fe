"""Numbers and quantities as text: three digits, in units of a readable size."""

import math
from typing import NamedTuple

from epochmeter.shared.units import percent

ABSENT = "-"
PERCENT = "%"  # symbol of fractions, whose values are 0 to 1
DIGITS = 3  # significant digits of a number
MIN_DECIMAL, MAX_DECIMAL = 1e-4, 1e9  # smaller and larger numbers are shown as `1.15e-06`


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
    "Hz": (Unit("MHz", 1e6, 0), Unit("GHz", 1e9, 1e9)),
    "FLOP/s": (Unit("GFLOP/s", 1e9, 0), Unit("TFLOP/s", 1e12, 1e12)),
    "B": (Unit("B", 1, 0), Unit("kB", 1e3, 1e3), Unit("MB", 1e6, 1e6), Unit("GB", 1e9, 1e9)),
}
UNITS["B/s"] = tuple(unit._replace(name=f"{unit.name}/s") for unit in UNITS["B"])
"""Base unit -> units of increasing size; also those of the live view's page."""


def readable_unit(value: float, base: str) -> Unit:
    """Return the unit in which a value of a base unit is best read; the base unit itself if it has no others."""
    sizes = UNITS.get(base, (Unit(base, 1, 0),))
    if not value:
        return next((unit for unit in sizes if unit.size == 1), sizes[0])
    return [unit for unit in sizes if unit.start <= abs(value)][-1]


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


def quantity(value: float | None, base: str, reference: float | None = None, *, decimals: int | None = None) -> str:
    """Format a quantity in a readable unit: `58.6 min`, `774 kJ`, `2.30 GB`; a fraction, whose base is `%`, by percent.

    The unit and the digits are those of `reference`, if given: for example the total of a part. With `decimals`, it has
    so many in place of three significant digits.
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if base == PERCENT:
        return percent(value, decimals)
    size = value if reference is None else reference
    unit = readable_unit(size, base)
    text = number(value / unit.size, size / unit.size) if decimals is None else f"{value / unit.size:.{decimals}f}"
    return f"{text} {unit.name}".rstrip()


def plus_minus(value: float, half: float, base: str) -> str:
    """Format a value and its interval in one unit, with the decimals of two significant digits of the interval."""
    unit = readable_unit(max(abs(value), half), base)
    value, half = value / unit.size, half / unit.size
    decimals = max(0, 1 - int(f"{half:.1e}".partition("e")[2]))
    rounded = round(value, decimals) + 0.0  # without the sign of a zero
    return f"{rounded:.{decimals}f} ± {half:.{decimals}f} {unit.name}".rstrip()
