"""Numbers and quantities as text: three digits, or those that an interval supports, in units of a readable size."""

import math
import re
from typing import NamedTuple

from epochmeter.shared.units import percent

ABSENT = "-"
NO_BREAK = "\N{NO-BREAK SPACE}"
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
SYMBOLS = sorted({PERCENT, "°C", "d", *(unit.name for units in UNITS.values() for unit in units)})
INSEPARABLE = re.compile(rf"(?<=\d) (?=(?:{'|'.join(SYMBOLS)}|\S+/\S+)(?!\w))| (?=± )|(?<=±) ")
"""The spaces between a number and its unit, and around a plus-minus sign."""


def readable_unit(value: float, base: str) -> Unit:
    """Return the unit in which a value of a base unit is best read; the base unit itself if it has no others."""
    sizes = UNITS.get(base, (Unit(base, 1, 0),))
    if not value:
        return next((unit for unit in sizes if unit.size == 1), sizes[0])
    return [unit for unit in sizes if unit.start <= abs(value)][-1]


def supported_decimals(half: float) -> int:
    """Return the digits after the point that a 95 % interval (plus or minus) supports: its two significant digits."""
    return max(0, 1 - int(f"{half:.1e}".partition("e")[2]))


def number(value: float | None, reference: float | None = None, half: float | None = None) -> str:
    """Format a number with three significant digits; `-` if it is absent.

    The digits are those of `reference` if that is its total, and at most those that an interval of plus or minus `half`
    supports.
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    size = abs(value if reference is None else reference)
    if value and (0 < size < MIN_DECIMAL or size >= MAX_DECIMAL):
        return f"{value:.{DIGITS - 1}e}"
    exponent = int(f"{size:.{DIGITS - 1}e}".partition("e")[2])  # of the rounded number: 9.996 is 10.0
    decimals = min(6, max(0, DIGITS - 1 - exponent), supported_decimals(half) if half else 6)
    text = f"{value:.{decimals}f}"
    return text if text.strip("-0.") else text.lstrip("-")


def quantity(
    value: float | None,
    base: str,
    reference: float | None = None,
    *,
    half: float | None = None,
    decimals: int | None = None,
) -> str:
    """Format a quantity in a readable unit: `58.6 min`, `774 kJ`, `2.30 GB`; a fraction, whose base is `%`, by percent.

    The unit and the digits are those of `reference`, if given: for example the total of a part. It has no more digits
    than its interval of plus or minus `half` supports. With `decimals`, it has so many in place of three significant
    digits.
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if base == PERCENT:
        return percent(value, decimals)
    size = value if reference is None else reference
    unit = readable_unit(size, base)
    if decimals is None:
        text = number(value / unit.size, size / unit.size, half and half / unit.size)
    else:
        text = f"{value / unit.size:.{decimals}f}"
    return f"{text} {unit.name}".rstrip()


def span(seconds: float) -> str:
    """Format an elapsed or a remaining time in whole seconds: `40 s`, `3 min 20 s`, `1 h 5 min`, `2 d 3 h`."""
    minutes, rest_s = divmod(max(0, round(seconds)), 60)
    hours, rest_min = divmod(minutes, 60)
    days, rest_h = divmod(hours, 24)
    if days:
        return f"{days} d {rest_h} h"
    if hours:
        return f"{hours} h {rest_min} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"


def within(value: float, half: float, base: str, reference: float | None = None) -> str:
    """Format a positive value with its relative interval: `58.6 min ± 1.6 %`."""
    return f"{quantity(value, base, reference, half=half)} ± {percent(half / value)}"


def unbroken(text: str) -> str:
    """Return a text in which no line breaks between a number and its unit, or at a plus-minus sign."""
    return INSEPARABLE.sub(NO_BREAK, text)


def plus_minus(value: float, half: float, base: str) -> str:
    """Format a value and its interval in one unit, with the decimals of two significant digits of the interval."""
    unit = readable_unit(max(abs(value), half), base)
    value, half = value / unit.size, half / unit.size
    decimals = supported_decimals(half)
    rounded = round(value, decimals) + 0.0  # without the sign of a zero
    return f"{rounded:.{decimals}f} ± {half:.{decimals}f} {unit.name}".rstrip()
