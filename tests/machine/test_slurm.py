"""Slurm's jobs, parsed from the output of its programs."""

import time
from datetime import datetime

import pytest
from stub import executable

from epochmeter.machine import slurm
from epochmeter.machine.slurm import SlurmJob, end_problem, ending_job, sharing_problem


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


@pytest.mark.parametrize(
    ("fields", "left_s", "state"),
    [
        ("JobState=RUNNING Reason=None", 80, "TIMEOUT"),
        ("JobState=RUNNING Reason=None", 145, "TIMEOUT"),
        ("JobState=COMPLETING Reason=TimeLimit", 0, "TIMEOUT"),
        ("JobState=TIMEOUT Reason=TimeLimit", 0, "TIMEOUT"),
        ("JobState=COMPLETING Reason=NodeDown", 0, "NODE_FAIL"),
        ("JobState=COMPLETING Reason=None", 0, "CANCELLED"),
        ("JobState=CANCELLED Reason=None", 0, "CANCELLED"),
        ("JobState=RUNNING Reason=None PreemptEligibleTime=2026-11-30T07:16:07 PreemptTime=2026-11-30T07:17:07", 30,
         "PREEMPTED"),
        ("JobState=RUNNING Reason=None PreemptTime=None", 30, "TIMEOUT"),
        ("JobState=RUNNING Reason=None PreemptTime=2026-11-30T07:17:07 StartTime=2026-11-30T08:00:00", 30, "TIMEOUT"),
        ("JobState=COMPLETING Reason=DeadLine", 0, "DEADLINE"),
    ],
)  # fmt: skip
def test_state_in_which_slurm_ends_a_job_is_known_after_its_signal(program, fields, left_s, state):
    end = datetime.fromtimestamp(time.time() + left_s).isoformat(timespec="seconds")
    other = "JobId=18 ArrayJobId=17 JobState=PENDING Reason=NodeDown"
    row = f"JobId=17 {fields} RunTime=00:01:12 EndTime={end} NodeList=n[0-1]"
    program("scontrol", f"echo '{row}'; echo '{other}'")
    environment = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[0-1]"}
    assert ending_job(environment) == SlurmJob("17", state, "n[0-1]")


def test_state_is_unknown_if_slurm_does_not_respond_and_there_is_none_unless_it_ends_the_job(program):
    program("scontrol", "exit 1")
    assert ending_job({"SLURM_JOB_ID": "17", "SLURMD_NODENAME": "n0"}) == SlurmJob("17", "", "n0")
    assert ending_job({}) is None
    for end in ("Unknown", "2999-01-01T00:00:00"):
        program("scontrol", f"echo 'JobId=17 JobState=RUNNING Reason=None EndTime={end}'")
        assert ending_job({"SLURM_JOB_ID": "17"}) is None, "someone else has sent the signal"


@pytest.mark.parametrize(
    "shell",
    [
        "echo 'JobId=17 JobState=COMPLETED Reason=None EndTime=2026-11-30T07:16:07'",
        "echo 'JobId=17 JobState=FAILED Reason=NonZeroExitCode EndTime=2026-11-30T07:16:07'",
        "echo 'JobId=17 JobState=SIGNALING Reason=None EndTime=2999-01-01T00:00:00'",  # scancel --signal=TERM
        "echo 'JobId=17 JobState=RUNNING PreemptTime=2026-11-30T07:00:00 StartTime=2026-11-30T08:00:00'",
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
    ],
)
def test_slurm_does_not_end_a_job_that_has_ended_or_runs_on(program, shell):
    program("scontrol", shell)
    assert ending_job({"SLURM_JOB_ID": "17"}) is None


def test_job_is_that_of_the_process_among_those_of_an_array_or_with_other_components(program):
    end = datetime.fromtimestamp(time.time() + 30).isoformat(timespec="seconds")
    rows = [
        "JobId=19 ArrayJobId=17 ArrayTaskId=2 JobState=RUNNING EndTime=2999-01-01T00:00:00",
        f"JobId=17 ArrayJobId=17 ArrayTaskId=3 JobState=RUNNING EndTime={end}",
        "JobId=18 HetJobId=17 HetJobOffset=1 JobState=COMPLETING Reason=NodeDown",
    ]
    program("scontrol", "; ".join(f"echo '{row}'" for row in rows))
    assert ending_job({"SLURM_JOB_ID": "17"}) == SlurmJob("17", "TIMEOUT", "")
    assert ending_job({"SLURM_JOB_ID": "19"}) is None
    assert ending_job({"SLURM_JOB_ID": "18"}) == SlurmJob("18", "NODE_FAIL", "")
    assert ending_job({"SLURM_JOB_ID": "1"}) == SlurmJob("1", "", ""), "no row is of this job"


def test_slow_slurm_is_asked_for_a_short_time_only(program, monkeypatch):
    monkeypatch.setattr(slurm, "NOTICE_LIMIT_S", 0.2)
    program("scontrol", "exec sleep 60")
    begun_s = time.monotonic()
    assert ending_job({"SLURM_JOB_ID": "17"}) == SlurmJob("17", "", "")
    assert time.monotonic() - begun_s < 30


@pytest.mark.parametrize(
    ("states", "named"),
    [
        ("n0 powered_down\nn1 down*\nn1 down*\nn2 down", "n1,n2"),
        ("n0 allocated\nn1 allocated*\nn2 completing", "n1"),
        ("n0 idle\nn1 idle", "n[0-2]"),  # it has come back
        ("", "n[0-2]"),
    ],
)
def test_problem_of_a_job_names_the_nodes_that_failed(program, states, named):
    program("sinfo", f"printf '{states}'" if states else "exit 1")
    problem = end_problem(SlurmJob("17", "NODE_FAIL", "n[0-2]"))
    assert (problem.code, problem.where.host) == ("node", named)
    assert f"node {named} failed" in problem.message
    limit = end_problem(SlurmJob("17", "TIMEOUT", "n[0-2]"))
    assert (limit.code, limit.where.host, limit.where.key) == ("timeout", "n[0-2]", "hydra.launcher.time")
