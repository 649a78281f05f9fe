"""Selection of runs: by keys, and without runs that are no results unless they are included."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import row, trained

from epochmeter.report.render import render_notes
from epochmeter.report.runs.filter import select
from epochmeter.report.runs.run import Sweep


def sweep(*runs, unreadable=None):
    return Sweep(Path("multirun/some"), runs, unreadable or {})


def numbers(runs):
    return [run.number for run in runs]


def failed(time_s):
    return replace(row(1, "storage", time_s), state="failed")


REHEARSED = row(2, "storage", 1.0, rehearsal=["rehearse=true"])
MIXED = sweep(row(0, "storage", 1.0), failed(1.0), REHEARSED, row(3, "storage", None),
              unreadable={"4": "JSONDecodeError: half of it"})  # fmt: skip


def test_runs_without_results_are_counted_by_reason_unless_they_are_included():
    for include, numbered, banner in (
        ([], [], []),
        (["rehearsals"], [2], ["REHEARSAL, not a result of the requested configuration (run 2): rehearse=true."]),
        (["failures"], [1], ["NOT COMPLETED (run 1): failed."]),
    ):
        found = select(MIXED, include=include)
        assert (numbers(found.runs), numbers(found.ended), found.count) == ([0, *numbered], [0, *numbered, 3], 5)
        reasons = {1: "not completed (failed)", 2: "rehearsal (rehearse=true)"}
        assert render_notes("left_out", found) == [
            *(f"Left out: 1 of 5 runs: {reason}." for number, reason in reasons.items() if number not in numbered),
            "Left out: 1 of 5 runs, whose record cannot be read: 4 (JSONDecodeError: half of it).",
        ]
        short = "NO RESULT (run 3): no epoch after the warm-up. hint: train more epochs, or set `warmup_epochs=0`."
        assert render_notes("warnings", found) == [*banner, short]


def test_run_with_two_reasons_needs_both_to_be_included():
    twice = sweep(row(0, "storage", 1.0), replace(REHEARSED, state="failed"))
    assert numbers(select(twice, include=["rehearsals"]).runs) == [0]
    assert numbers(select(twice, include=["rehearsals", "failures"]).runs) == [0, 2]


def test_failure_without_epochs_is_not_included_and_read_errors_are_noted():
    flawed = replace(row(0, "storage", 1.0), read_errors=["steady/energy_j: not finite"])
    found = select(sweep(flawed, failed(None)), include=["failures"])
    assert numbers(found.runs) == [0]
    assert render_notes("left_out", found) == [
        "Left out: 1 of 2 runs: not completed (failed).",
        "Left out of 1 run: run 0: steady/energy_j: not finite.",
    ]


LIMITS = {8: None, 16: 100.0, 32: 100.0}
RUNS = sweep(*(
    trained(number, 100.0, batch=batch, typed={"batch": str(batch), "optimizer.lr": "1e-3"}, power_limit=limit)
    for number, (batch, limit) in enumerate(LIMITS.items())
))  # fmt: skip


def test_runs_are_selected_by_keys():
    for where, expected in (
        ({"batch": 8}, [0]),
        ({"batch": [8, 32]}, [0, 2]),
        ({"batch": "16.0"}, [1]),
        ({"model": "resnet152", "batch": [16, 64]}, [1]),
        ({"optimizer.lr": 0.001, "run": [1, 2]}, [1, 2]),
        ({"power_limit": None}, [0]),
        ({"power_limit": 100}, [1, 2]),
        ({"state": "completed"}, [0, 1, 2]),
    ):
        assert numbers(select(RUNS, where).runs) == expected


def test_unknown_key_value_or_kind_suggests_similar_ones():
    for options, message in (
        ({"where": {"bach": 8}}, "where=bach: no run has such a key\n  hint: do you mean batch or cache?"),
        ({"where": {8: 8}}, "where=8: no run has such a key"),
        ({"where": {"batch": 7}}, "where=batch: 7: none of 3 runs\n  hint: there are: 8, 16, 32"),
        ({"where": {"sweep": "other"}}, "where=sweep"),
        ({"include": ["rehearsal"]}, "give one of rehearsals, failures"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            select(RUNS, **options)
