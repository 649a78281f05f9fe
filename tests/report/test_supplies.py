"""The three supplies of samples: which of them a run had, and which runs are of one job."""

import pytest
from sweeps import job, row

from trainmeter.report.supplies import by_job, condition


@pytest.mark.parametrize("supply", ["tensors", "warm", "cold"])
def test_a_condition_is_told_from_the_job(supply):
    assert condition(job(supply)) == supply


@pytest.mark.parametrize("cache", ["keep", "cold"])
def test_a_plain_run_is_none_of_the_three(cache):
    assert condition(job("warm", cache=cache)) is None
    assert by_job([row(0, "warm", 1.0, job_keys={"cache": cache})]) == []


def test_runs_of_one_job_are_together_by_their_supplies():
    found = [row(n, supply, 1.0 + n) for n, supply in enumerate(("warm", "cold", "warm"))]
    other = row(3, "cold", 1.0, job_keys={"batch": 8})
    (group,) = by_job([*found, other])
    assert {name: [each.number for each in rows] for name, rows in group.items()} == {"warm": [0, 2], "cold": [1]}
