"""The result of a run."""

import os
import signal

import pytest
from cases import case, cases

from epochmeter.config.errors import REFUSAL_FILE
from epochmeter.machine import slurm
from epochmeter.results.run_info import Energy
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
    monkeypatch.setattr(os, "environ", {"PATH": "", **({"SLURM_JOB_ID": job} if job else {})})  # Slurm does not respond
    result = RunResult(0, [])
    result.set_stopped(stop)
    assert (result.state, result.failure.code, result.stop) == ("killed", "stopped", stop)
    assert part in result.failure.message


@pytest.mark.parametrize(
    ("state", "expected", "key"),
    [("TIMEOUT", ("failed", "timeout"), "hydra.launcher.time"), ("CANCELLED", ("killed", "stopped"), ""),
     ("PREEMPTED", ("killed", "stopped"), "")],
)  # fmt: skip
def test_run_that_slurm_stopped_has_the_cause_and_a_limit_of_the_launcher_only_with_it(
    monkeypatch, state, expected, key
):
    monkeypatch.setattr(slurm, "ending_job", lambda environment: slurm.SlurmJob("17", state, "n[0-1]"))
    for environment, of_launcher in ({}, ""), ({REFUSAL_FILE: "refused.json"}, key):
        monkeypatch.setattr(os, "environ", environment)
        result = RunResult(0, [])
        result.set_stopped(TERM)
        assert (result.state, result.failure.code, result.failure.where.key) == (*expected, of_launcher)
        assert bool(result.failure.hint) == (state == "TIMEOUT")


@cases(
    case(meter="none", source="none", reason="energy is not measured.", is_missing=True, requested="none"),
    case(meter="estimate", source="estimated", reason="an estimate", is_missing=True, requested="estimate"),
    case(meter="estimate", source="none", reason="meter.tdp_w is not set", is_missing=True, requested=""),
    case(meter="rapl", source="none", reason="no counter", is_missing=True, requested=""),
    case(meter="rapl", source="counter", reason="only one of two packages", is_missing=False, requested=""),
)
def test_missing_energy_is_as_requested_with_a_meter_that_measures_none(meter, source, reason, is_missing, requested):
    result = RunResult(0, [])
    result.set_energy(Energy(source=source, reason=reason), meter)
    assert (result.no_energy is not None, result.requested_meter) == (is_missing, requested)
