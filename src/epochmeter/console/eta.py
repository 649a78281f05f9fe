"""Durations as text, and the typical duration of earlier runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime, timedelta

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def median_or_none(seconds: Sequence[float]) -> float | None:
    """Return the median; None without any value."""
    return statistics.median(seconds) if seconds else None


def humanize_s(seconds: float) -> str:
    """Return a rounded duration: `about 40 s`, `about 12 min`, `about 3 h 20 min`, `about 2 days 4 h`."""
    if round(seconds) < MINUTE_S:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / MINUTE_S)
    if minutes < HOUR_S // MINUTE_S:
        return f"about {minutes} min"
    hours, minutes = divmod(minutes, HOUR_S // MINUTE_S)
    if hours < DAY_S // HOUR_S:
        return f"about {hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(round(seconds / HOUR_S), DAY_S // HOUR_S)
    return f"about {days} day{'s' if days > 1 else ''}" + (f" {hours} h" if hours else "")


def eta_text(seconds: float, now: datetime) -> str:
    """Return a rounded duration and the time of day at its end, with the date if it is another day.

    Example: `about 12 min (until 14:32)`.
    """
    end = now + timedelta(seconds=seconds)
    date = "" if end.date() == now.date() else f"{end:%Y-%m-%d} "
    return humanize_s(seconds) + (f" (until {date}{end:%H:%M})" if seconds >= MINUTE_S else "")
