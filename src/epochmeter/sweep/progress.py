"""Progress of a sweep: its runs so far, and the estimated end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import COMPLETED
from epochmeter.results.sweep_files import Points


class SweepProgress(NamedTuple):
    """The runs of a sweep, none for a single run or a search, and how those so far ended."""

    points: Points = Points()
    outcomes: Sequence[RunResult] = ()

    def forecast(self, number: int, now: datetime | None = None) -> str:
        """Return when the sweep will end, by the median time of the runs that this process completed."""
        completed = [outcome.duration_s for outcome in self.outcomes if outcome.state == COMPLETED]
        durations_s = [duration_s for duration_s in completed if duration_s is not None]
        total = len(self.points.overrides)
        if not durations_s or number >= total:
            return ""
        typical_s = statistics.median(durations_s)
        remaining = sum(other not in self.points.completed for other in range(number, total))
        end = (now or datetime.now()) + timedelta(seconds=remaining * typical_s)
        return f"ETA: {end:%Y-%m-%d %H:%M} ({remaining} x {timedelta(seconds=round(typical_s))})"


SINGLE_RUN = SweepProgress()  # the progress of a single run
