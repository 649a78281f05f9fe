"""The result of a run."""

import os
import signal

import pytest

from epochmeter.results.run_result import RunResult

TERM = SystemExit(128 + signal.SIGTERM)


@pytest.mark.parametrize(
    ("stop", "job", "part"),
    [
        (TERM, "17", "job 17"),
        (TERM, None, "a signal"),
        (KeyboardInterrupt(), "17", "Ctrl-C"),
        (SystemExit(128 + signal.SIGPIPE), "17", "the reader of its output has ended"),
    ],
)
def test_stopped_run_is_killed_with_the_reason(monkeypatch, stop, job, part):
    monkeypatch.setattr(os, "environ", {"SLURM_JOB_ID": job} if job else {})
    result = RunResult(0, [])
    result.set_stopped(stop)
    assert (result.state, result.kind, result.stop) == ("killed", "stopped", stop)
    assert part in result.failure
