"""A sweep under way: how far it has come, how long it will still take, and whether it is to go on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from epochmeter.console.eta import ahead, typical
from epochmeter.results.run_result import Outcome
from epochmeter.sweep.sweep_folder import Points


class Course(NamedTuple):
    """The runs of a sweep: what they are, as far as that is known, and how those ended that have; none of a single."""

    points: Points = Points()
    outcomes: Sequence[Outcome] = ()

    def place(self, number: int) -> str:
        """Which run this is, of how many, and what tells it from the others; nothing where that is not known."""
        if number >= self.total:
            return ""
        keys = " ".join(override for override in self.points.typed[number] if override in self.points.varied)
        return f"run {number} ({number + 1} of {self.total})" + (f": {keys}" if keys else "")

    def forecast(self, number: int, now: datetime | None = None) -> str:
        """When this run will end, and the last, by the median of those that were measured to their end so far; nothing
        before."""
        now = now or datetime.now()
        whole = [outcome for outcome in self.outcomes if outcome.state == "whole" and not outcome.earlier]
        usual_s = typical([outcome.lasted_s for outcome in whole if outcome.lasted_s is not None])
        if usual_s is None or number >= self.total:
            return ""
        left = sum(other not in self.points.whole for other in range(number, self.total))
        one = f"it takes {ahead(usual_s, now)}"
        return one + (f"; the {left} that are left {ahead(left * usual_s, now)}" if left > 1 else "")

    @property
    def total(self) -> int:
        return len(self.points.typed)

    @property
    def rests_since_s(self) -> float | None:
        """When the last run ended that was measured, by the monotonic clock; None where this process measured none."""
        return next((outcome.ended_s for outcome in reversed(self.outcomes) if outcome.ended_s is not None), None)

    def ending(self, most: int | None) -> str:
        """Why the sweep ends before its last run: so many have failed; nothing while it is to go on."""
        failed = sum(outcome.state == "failed" for outcome in self.outcomes)
        left = self.total - len(self.outcomes)
        if most is None or failed < most or (self.total and not left):
            return ""
        of_all = f", with {left} of {self.total} runs left" if self.total else ""
        return (
            f"The sweep ended{of_all}: {failed} failed, and sweep.max_failures={most}. Mend why, or raise that, and "
            "give the same command: it goes on, and what is whole is not measured again."
        )


ALONE = Course()
"""That of a run that is none of a sweep."""
