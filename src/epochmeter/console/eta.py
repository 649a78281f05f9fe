"""How long what is under way will still take, from how long its like has taken so far: never more than about."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def typical(seconds: Sequence[float]) -> float | None:
    """The median; None where there is nothing to tell from."""
    return statistics.median(seconds) if seconds else None


def left_s(opened_s: Sequence[float], now_s: float, count: int) -> float | None:
    """How long so many more will take of what has opened at these times, one after another, and is still so now.

    The first warms up, and counts only while there is no other; None where nothing was opened yet.
    """
    lasted_s = [end - begin for begin, end in pairwise([*opened_s, now_s])]
    usual_s = typical(lasted_s[1:] or lasted_s)
    return None if usual_s is None else count * usual_s


def about(seconds: float) -> str:
    """A time as one says it of the future: `about 40 s`, `about 12 min`, `about 3 h 20 min`, `about 2 days 4 h`."""
    if round(seconds) < MINUTE_S:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / MINUTE_S)
    if minutes < HOUR_S // MINUTE_S:
        return f"about {minutes} min"
    hours, rest = divmod(minutes, HOUR_S // MINUTE_S)
    if hours < DAY_S // HOUR_S:
        return f"about {hours} h" + (f" {rest} min" if rest else "")
    days, hours = divmod(round(seconds / HOUR_S), DAY_S // HOUR_S)
    return f"about {days} day{'s' if days > 1 else ''}" + (f" {hours} h" if hours else "")


def ahead(seconds: float, now: datetime) -> str:
    """The same, with the time of day that it then is, and its day where that is another: `about 12 min, to 14:32`."""
    end = now + timedelta(seconds=seconds)
    day = "" if end.date() == now.date() else f"{end:%Y-%m-%d} "
    return about(seconds) + (f", to {day}{end:%H:%M}" if seconds >= MINUTE_S else "")
