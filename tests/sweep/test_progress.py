"""Progress of a sweep: labels and ETA."""

from datetime import datetime

import pytest

from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import Points
from epochmeter.sweep.progress import SINGLE_RUN, SweepProgress

NOON = datetime(2026, 11, 20, 12, 0, 0)
OVERRIDES = [["model=lenet", f"batch={batch}"] for batch in (8, 16, 32, 64)]
POINTS = Points(OVERRIDES, frozenset(f"batch={batch}" for batch in (8, 16, 32, 64)))


def outcome(number, lasted_s=None, state="completed", **facts):
    return RunResult(
        number, [], state=state, start_monotonic_s=100.0, end_monotonic_s=lasted_s and 100.0 + lasted_s, **facts
    )


@pytest.mark.parametrize(
    ("completed", "outcomes", "number", "eta"),
    [
        ({}, [], 0, ""),
        ({}, [outcome(0, earlier=True), outcome(1, state="failed")], 2, ""),
        ({}, [outcome(0, 600), outcome(1, 60, "failed"), outcome(2, 720)], 3, "ETA: 2026-11-20 12:11 (1 x 0:11:00)"),
        ({}, [outcome(0, 600)], 1, "ETA: 2026-11-20 12:30 (3 x 0:10:00)"),
        ({0, 2}, [outcome(0, earlier=True), outcome(1, 600)], 1, "ETA: 2026-11-20 12:20 (2 x 0:10:00)"),
    ],
)
def test_remaining_time_uses_the_median_of_measured_runs(completed, outcomes, number, eta):
    assert (SINGLE_RUN.points.label(0), SINGLE_RUN.forecast(0, NOON)) == ("", "")
    assert POINTS.label(2) == "[3/4] run 2: batch=32"
    points = POINTS._replace(completed=frozenset(completed))
    assert SweepProgress(points, outcomes).forecast(number, NOON) == eta
