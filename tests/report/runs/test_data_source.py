"""The three supplies of samples: which of them a run had, and which runs are of one job."""

from dataclasses import replace

import pytest
from sweeps import job, row

from epochmeter.report.runs.data_source import by_job, condition


def numbers(rows):
    return [each.number for each in rows]


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
    assert {name: numbers(rows) for name, rows in group.runs.items()} == {"warm": [0, 2], "cold": [1]}
    assert group.elsewhere == {}


def test_what_ran_on_another_host_is_known_to_be_there():
    warm, cold, alone = (row(n, supply, 1.0, host=host) for n, (supply, host) in
                         enumerate((("warm", "h1"), ("cold", "h2"), ("cold", "h3"))))  # fmt: skip
    other = replace(alone, job={**alone.job, "batch": 8})
    assert [(each.runs, each.elsewhere) for each in by_job([warm, cold, other])] == [
        ({"warm": [warm]}, {"cold": ["h2"]}),
        ({"cold": [cold]}, {"warm": ["h1"]}),
    ]
