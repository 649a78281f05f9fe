"""The files of a sweep's folder."""

from datetime import datetime

import pytest
from project import put

from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import Points, read_planned_runs, read_points
from epochmeter.sweep.sweep_folder import write_points

NOON = datetime(2026, 11, 20, 12, 0, 0)
OVERRIDES = [["model=lenet", f"batch={batch}"] for batch in (8, 16, 32, 64)]
POINTS = Points(OVERRIDES, frozenset(f"batch={batch}" for batch in (8, 16, 32, 64)))


def result(number, lasted_s=None, state="completed", **facts):
    return RunResult(
        number, [], state=state, start_monotonic_s=100.0, end_monotonic_s=lasted_s and 100.0 + lasted_s, **facts
    )


def test_points_have_varied_keys_and_completed_runs_and_are_empty_if_damaged(tmp_path):
    overrides = [["batch=8", "workers=0"], ["batch=16", "workers=0"]]
    write_points(tmp_path, overrides)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "completed.json").write_text("{}")
    assert read_points(tmp_path) == (overrides, {"batch=8", "batch=16"}, {1})
    for name, text in {
        "none": None,
        "empty": "",
        "truncated": '{"points": [["batch=8"',
        "no points": '{"points": []}',
        "no texts": '{"points": [["batch=8"], [8]]}',
        "too deep": "[" * 10_000,
    }.items():
        if text is not None:
            put(tmp_path, {f"{name}/points.json": text})
        assert read_points(tmp_path / name) == ((), frozenset(), frozenset())


@pytest.mark.parametrize(
    ("content", "runs"),
    [('{"runs": 7}', 7), ('{"runs": -1}', 0), ('{"runs": 1e12}', 0), ("[7]", 0), ('{"runs": "x"}', 0)],
)
def test_planned_runs_of_a_search_are_a_number_of_runs(tmp_path, content, runs):
    assert read_planned_runs(tmp_path) == 0
    put(tmp_path, {"search.json": content})
    assert read_planned_runs(tmp_path) == runs


def test_remaining_time_uses_the_median_of_measured_runs():
    for completed, results, number, eta in (
        ({}, [], 0, ""),
        ({}, [result(0, earlier=True), result(1, state="failed")], 2, ""),
        (
            {},
            [result(0, 600), result(1, 60, "failed"), result(2, 720)],
            3,
            "ends about 2026-11-20 12:11 (1 x 11 min 0 s)",
        ),
        ({}, [result(0, 600)], 1, "ends about 2026-11-20 12:30 (3 x 10 min 0 s)"),
        ({0, 2}, [result(0, earlier=True), result(1, 600)], 1, "ends about 2026-11-20 12:20 (2 x 10 min 0 s)"),
    ):
        points = POINTS._replace(completed=frozenset(completed))
        assert points.forecast(number, results, NOON) == eta
    assert (Points().label(0), Points().forecast(0, [], NOON)) == ("", "")
    assert POINTS.label(2) == "[3/4] run 2: batch=32"
