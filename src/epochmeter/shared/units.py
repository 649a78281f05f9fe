"""Units and names that the controller and the training process share."""

from typing import Optional

NANOSECOND = 1e-9  # in seconds
MIN_WHOLE_PERCENT = 0.0995
"""Fraction from which a percentage has no decimals: 9.9 %, 10 %."""


def percent(fraction: float, decimals: Optional[int] = None) -> str:
    """Return a fraction as a text: `3.6 %`, `44 %`, or with so many decimals."""
    return f"{percentage(fraction, decimals)} %"


def percentage(fraction: float, decimals: Optional[int] = None) -> str:
    """Return the number of `percent`, for columns and ranges, which have the sign once."""
    if decimals is None:
        decimals = 0 if abs(fraction) >= MIN_WHOLE_PERCENT else 1
    rounded = round(100 * fraction, decimals) + 0.0  # without the sign of a zero
    return f"{rounded:.{decimals}f}"
