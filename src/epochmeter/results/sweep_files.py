"""The files of a sweep's folder, next to the run folders `0`, `1`, ...

points.json     the overrides of each run by number; written before the first run
search.json     the number of runs that a search plans
slurm/jobs.json the jobs that were submitted to a cluster, and slurm/changes.jsonl with their ends
.started        when it was started again: results/sweep_order.py
"""

import statistics
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from epochmeter.results import documents
from epochmeter.results.quantities import span
from epochmeter.results.reuse import referenced_record
from epochmeter.results.run_folder import READ_ERRORS
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import COMPLETED
from epochmeter.shared.record import COMPLETED_FILE, REFERENCE_FILE
from epochmeter.shared.record_files import read_document

POINTS_FILE, SEARCH_FILE, SUBMISSIONS_FILE = "points.json", "search.json", "slurm/jobs.json"
MAX_PLANNED_RUNS = 10**6  # more are not a number of runs: search.json is damaged
RECENT_RUNS = 100  # number of runs from which the end of a sweep is estimated
RECOMMENDED_REPEATS = 3  # with fewer, intervals are much wider


class Points(NamedTuple):
    """The runs of a sweep by number, as of its start."""

    overrides: Sequence[Sequence[str]] = ()
    varied: frozenset[str] = frozenset()  # overrides that differ between runs
    completed: frozenset[int] = frozenset()  # numbers of the runs that were completed before

    def label(self, number: int) -> str:
        """Return the label of a run: `[2/4] run 1: batch=16`; empty if the runs of the sweep are not known."""
        total = len(self.overrides)
        if number >= total:
            return ""
        varied = " ".join(override for override in self.overrides[number] if override in self.varied)
        return f"[{number + 1}/{total}] run {number}" + (f": {varied}" if varied else "")

    def forecast(self, number: int, results: Sequence[RunResult], now: datetime | None = None) -> str:
        """Return when the sweep will end, by the median time of the last runs that this process completed."""
        completed = (result.duration_s for result in reversed(results) if result.state == COMPLETED)
        durations_s = [*islice((duration_s for duration_s in completed if duration_s is not None), RECENT_RUNS)]
        if not durations_s or number >= len(self.overrides):
            return ""
        typical_s = statistics.median(durations_s)
        remaining = (
            len(self.overrides) - number - sum(number <= other < len(self.overrides) for other in self.completed)
        )
        end = (now or datetime.now()) + timedelta(seconds=remaining * typical_s)
        return f"ends about {end:%Y-%m-%d %H:%M} ({remaining} x {span(typical_s)})"


def repeats_override(count: int = RECOMMENDED_REPEATS) -> str:
    """Return the overrides for repeats as rounds of all configurations, so that drift is not taken for a difference."""
    return f"sweep.repeats={count} sweep.order=random"


@lru_cache(maxsize=1)
def read_points(folder: Path) -> Points:
    """Return the points of a sweep; empty without points.json, as for a single run."""
    try:
        overrides = documents.read(folder / POINTS_FILE, documents.PointsFile)["points"]
        common = set(overrides[0]).intersection(*overrides)
    except READ_ERRORS:
        return Points()
    executed = [path.parent for path in folder.glob(f"*/{COMPLETED_FILE}")]
    reused = [path.parent for path in folder.glob(f"*/{REFERENCE_FILE}") if referenced_record(path.parent)]
    completed = frozenset(int(run.name) for run in (*executed, *reused) if run.name.isdecimal())
    return Points(overrides, frozenset(chain(*overrides)) - common, completed)


def read_planned_runs(folder: Path) -> int:
    """Return the number of runs that a search plans, including those so far; 0 without a search, or if not known."""
    try:
        runs = int(read_document(folder / SEARCH_FILE)["runs"])
    except READ_ERRORS:
        return 0
    return runs if 0 <= runs <= MAX_PLANNED_RUNS else 0


def is_remote(folder: Path) -> bool:
    """Whether the runs of a sweep are submitted to a cluster."""
    return (folder / SUBMISSIONS_FILE).exists()
