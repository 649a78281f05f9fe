"""Lines about the runs of a sweep."""

import pytest

from epochmeter.console.sweep_lines import note_lines, run_line
from epochmeter.results.run_result import RunResult

MEAN = {"steady/e2e_s": 1.234, "steady/data_stall_s": 0.9, "steady/compute_s": 0.3, "total/e2e_s": 7.5}
LABEL = "[2/6] run 1: batch=16"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (RunResult(1, [], metrics=MEAN, bottleneck="data_stall"), "1.23 s per epoch, data-bound"),
        (RunResult(1, [], metrics={**MEAN, "steady/energy_j": 53.14}), "1.23 s per epoch, 53.1 J"),
        (
            RunResult(1, [], metrics={**MEAN, "steady/estimated_energy_j": 53.14}),
            "1.23 s per epoch, 53.1 J (estimated)",
        ),
        (RunResult(1, [], metrics={"total/e2e_s": 7.5, "total/energy_j": 9.0}), "7.50 s in total, 9.00 J"),
        (RunResult(1, [], metrics=MEAN, rehearsal=["not set"]), "rehearsal, 1.23 s per epoch"),
        (RunResult(1, [], metrics=MEAN, state="failed"), "failed, 1.23 s per epoch"),
        (RunResult(1, []), "completed"),
    ],
)
def test_run_has_its_costs_and_its_verdict_in_a_line(result, shown):
    assert run_line(LABEL, result) == f"{LABEL}: {shown}"


def test_equal_notes_of_runs_are_one_line_with_the_numbers_of_the_runs():
    varies = "warning: epoch times vary by {} % (0.5 s)."
    results = [
        RunResult(0, [], notes=[varies.format(12), "only here"]),
        RunResult(1, [], notes=[f"{varies.format(15)} (2 more with other numbers)"]),
        RunResult(2, [], notes=[varies.format(12)]),
    ]
    assert note_lines(results) == [f"{varies.format(12)} (all 3 runs; numbers of run 0)", "only here (run 0)"]
    results[2].notes = [varies.format("10 to 12")]
    assert note_lines(results)[:1] == [f"{varies.format(12)} (all 3 runs; numbers of run 0)"], "a range is a number"
    many = [RunResult(number, [], notes=["same"] if number else []) for number in range(8)]
    assert note_lines(many) == ["same (runs 1, 2, 3, 4, 5 and 2 more)"]
    assert note_lines([RunResult(0, [], notes=["alone"])]) == ["alone (run 0)"]


def test_a_hint_follows_the_numbers_of_the_runs_that_share_its_note():
    notes = ["warning: others used {} %\n  hint: end {}".format(*values) for values in ((60, "make"), (70, "cc"))]
    results = [RunResult(number, [], notes=[note]) for number, note in enumerate(notes)]
    assert note_lines(results) == ["warning: others used 60 % (both runs; numbers of run 0)\n  hint: end make"]
