"""Slurm's jobs, parsed from the output of its programs."""

import pytest
from stub import executable

from epochmeter.machine import slurm
from epochmeter.machine.slurm import SlurmJob, sharing_problem


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Function of (name, shell): write one of Slurm's programs; no others are on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return lambda name, shell: executable(tmp_path / name, f"#!/bin/sh\n{shell}\n")


def test_job_reason_may_have_the_column_separator_and_unknown_states_are_no_end(program):
    program("squeue", "echo '17_0|EXPEDITING|b1|None'; echo '17_1|PENDING||Nodes|required'; echo '9|CANCELLED||'")
    found = slurm.list_jobs("epochmeter-x")
    assert found["17_0"] == SlurmJob("17_0", "EXPEDITING", "b1", "None")
    assert found["17_1"].reason == "Nodes|required"
    assert [(job.is_waiting, job.has_ended) for job in found.values()] == [(False, False), (True, False), (False, True)]
    active = ["RUNNING", "COMPLETING", "SUSPENDED", "REQUEUE_FED", "POWER_UP_NODE"]
    ended = ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "GONE"]
    assert [state for state in active + ended if SlurmJob("9", state).has_ended] == ended


def test_energy_of_a_node_that_may_be_shared_is_refused(program):
    job = {"SLURM_JOB_ID": "17"}
    assert sharing_problem({}) is None
    program("scontrol", "echo 'JobId=17 JobName=x OverSubscribe=NO Contiguous=0'")
    assert sharing_problem(job) is None
    for shared in ("OK", "YES", "USER"):
        program("scontrol", f"echo 'JobId=17 JobName=x OverSubscribe={shared} Contiguous=0'")
        assert "job 17 shares its node" in sharing_problem(job).message
    program("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "exclusively: scontrol failed: Unable to contact" in sharing_problem(job).message
