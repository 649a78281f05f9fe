"""The three sources of samples: which of them a run had, and which runs are of one job."""

from dataclasses import replace

import pytest
from sweeps import job, row

from epochmeter.report.runs.data_source import by_job, condition


@pytest.mark.parametrize("data_source", ["synthetic", "cached", "storage"])
def test_condition_follows_from_the_configuration(data_source):
    assert condition(job(data_source)) == data_source
    for cache in ("keep", "cold"):
        assert data_source == "synthetic" or condition(job(data_source, cache=cache)) is None, "a plain run"


def test_runs_of_one_job_are_together_by_their_data_source():
    found = [row(n, data_source, 1.0 + n) for n, data_source in enumerate(("cached", "storage", "cached"))]
    others = row(3, "storage", 1.0, job_keys={"batch": 8}), row(4, "cached", 1.0, job_keys={"cache": "keep"})
    (group,) = by_job([*found, *others])
    assert {name: [each.number for each in rows] for name, rows in group.runs.items()} == {
        "cached": [0, 2],
        "storage": [1],
    }
    assert group.elsewhere == {}


def test_condition_on_another_host_is_listed():
    warm, cold, alone = (row(n, data_source, 1.0, host=host) for n, (data_source, host) in
                         enumerate((("cached", "h1"), ("storage", "h2"), ("storage", "h3"))))  # fmt: skip
    other = replace(alone, job={**alone.job, "batch": 8})
    assert [(each.runs, each.elsewhere) for each in by_job([warm, cold, other])] == [
        ({"cached": [warm]}, {"storage": ["h2"]}),
        ({"storage": [cold]}, {"cached": ["h1"]}),
    ]
