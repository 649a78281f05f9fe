"""Progress of a sweep: the number of runs so far, the estimated end, and whether too many have failed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import COMPLETED, FAILED
from epochmeter.results.sweep_files import Points


class SweepProgress(NamedTuple):
    """The runs of a sweep, none for a single run or a search, and how those so far ended."""

    points: Points = Points()
    outcomes: Sequence[RunResult] = ()

    def forecast(self, number: int, now: datetime | None = None) -> str:
        """Return when the sweep will end, by the median time of the runs that this process completed."""
        completed = [outcome.duration_s for outcome in self.outcomes if outcome.state == COMPLETED]
        durations_s = [duration_s for duration_s in completed if duration_s is not None]
        if not durations_s or number >= self.total:
            return ""
        typical_s = statistics.median(durations_s)
        remaining = sum(other not in self.points.completed for other in range(number, self.total))
        end = (now or datetime.now()) + timedelta(seconds=remaining * typical_s)
        return f"ETA: {end:%Y-%m-%d %H:%M} ({remaining} x {timedelta(seconds=round(typical_s))})"

    @property
    def total(self) -> int:
        """The number of runs of the sweep; 0 if not known."""
        return len(self.points.overrides)

    def stop_reason(self, most: int | None) -> str:
        """Return the message with which a sweep stops at `sweep.max_failures`; empty if it continues."""
        failed = sum(outcome.state == FAILED for outcome in self.outcomes)
        remaining = self.total - len(self.outcomes)
        if most is None or failed < most or (self.total and not remaining):
            return ""
        skipped = f"; {remaining} of {self.total} runs were not started" if self.total else ""
        return (
            f"error: the sweep stopped after {failed} failed run{'s' if failed > 1 else ''} "
            f"(`sweep.max_failures={most}`){skipped}\n"
            "  hint: fix the cause or raise `sweep.max_failures`, then run the same command again: "
            "completed runs are skipped"
        )


SINGLE_RUN = SweepProgress()  # the progress of a single run
