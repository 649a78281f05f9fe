"""How far a sweep has come, when it will have come to its end, and when it is ended before."""

from datetime import datetime

from epochmeter.results.run_result import Outcome
from epochmeter.sweep.progress import ALONE, Course
from epochmeter.sweep.sweep_folder import Points

NOON = datetime(2026, 11, 20, 12, 0, 0)
TYPED = [["model=lenet", f"batch={batch}"] for batch in (8, 16, 32, 64)]
POINTS = Points(TYPED, frozenset(f"batch={batch}" for batch in (8, 16, 32, 64)))


def outcome(number, lasted_s=None, state="whole", **facts):
    return Outcome(number, [], state=state, began_s=100.0, ended_s=lasted_s and 100.0 + lasted_s, **facts)


def test_a_run_is_told_by_its_number_its_place_and_what_varies():
    assert Course(POINTS).place(2) == "run 2 (3 of 4): batch=32"


def test_a_single_run_and_one_whose_sweep_notes_no_points_have_no_place():
    assert ALONE.place(0) == ""
    assert ALONE.forecast(0, NOON) == ""


def test_before_any_run_was_measured_nothing_is_foretold():
    assert Course(POINTS).forecast(0, NOON) == ""
    assert Course(POINTS, [outcome(0, earlier=True), outcome(1, state="failed")]).forecast(2, NOON) == ""


def test_the_end_of_a_run_and_of_all_is_foretold_by_the_median_of_those_that_were_whole():
    course = Course(POINTS, [outcome(0, 600), outcome(1, 60, "failed"), outcome(2, 720)])
    assert course.forecast(3, NOON) == "it takes about 11 min, to 12:11"
    assert Course(POINTS, [outcome(0, 600)]).forecast(1, NOON) == (
        "it takes about 10 min, to 12:10; the 3 that are left about 30 min, to 12:30"
    )


def test_runs_that_were_whole_before_take_no_time():
    points = POINTS._replace(whole=frozenset({0, 2}))
    assert Course(points, [outcome(0, earlier=True), outcome(1, 600)]).forecast(1, NOON) == (
        "it takes about 10 min, to 12:10; the 2 that are left about 20 min, to 12:20"
    )


def test_the_device_rests_since_the_last_run_that_was_measured():
    assert ALONE.rests_since_s is None
    ran = [outcome(0, 600), outcome(1, 720), outcome(2, earlier=True)]
    assert Course(POINTS, ran).rests_since_s == 820


def test_a_sweep_is_ended_by_so_many_failures_and_says_how_to_go_on():
    failed = [outcome(0, 5, "failed"), outcome(1, 5), outcome(2, 5, "failed")]
    assert Course(POINTS, failed).ending(None) == ""
    assert Course(POINTS, failed).ending(3) == ""
    assert Course(POINTS, failed).ending(2) == (
        "The sweep ended, with 1 of 4 runs left: 2 failed, and sweep.max_failures=2. Mend why, or raise that, and give "
        "the same command: it goes on, and what is whole is not measured again."
    )


def test_a_sweep_whose_last_run_was_the_last_to_fail_has_simply_come_to_its_end():
    assert Course(POINTS, [outcome(number, 5, "failed") for number in range(4)]).ending(4) == ""
