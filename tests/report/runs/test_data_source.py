"""The three sources of samples: which of them a run had, and which runs are of one job."""

import pytest
from sweeps import job, row

from epochmeter.report.runs.data_source import by_job, condition


@pytest.mark.parametrize("data_source", ["synthetic", "cached", "storage"])
def test_condition_follows_from_the_configuration(data_source):
    assert condition(job(data_source)) == data_source
    for cache in ("keep", "cold"):
        assert data_source == "synthetic" or condition(job(data_source, cache=cache)) is None, "a plain run"


def test_runs_of_one_job_and_host_are_together_by_their_data_source():
    found = [row(n, data_source, 1.0 + n, host="h1") for n, data_source in enumerate(("cached", "storage", "cached"))]
    other_jobs = row(3, "storage", 1.0, job_keys={"batch": 8}), row(4, "cached", 1.0, job_keys={"cache": "keep"})
    other_host = row(5, "synthetic", 1.0, host="h2")
    (group,) = by_job([*found, *other_jobs, other_host])
    assert group == {"cached": [found[0], found[2]], "storage": [found[1]]}
