"""A cluster that a test sets by hand."""

from types import SimpleNamespace

import pytest

from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.machine import slurm
from epochmeter.machine.slurm import SlurmJob, SlurmNode


@pytest.fixture
def launcher():
    """The launcher's keys as their file has them."""
    nothing = dict.fromkeys(("partition", "account", "qos", "gres", "time", "options", "python"))
    return {**nothing, "mem": 0, "exclusive": True, "setup": [], "poll_s": 0}


@pytest.fixture
def cluster(monkeypatch):
    """Slurm as a test has it: its nodes, its jobs by their ids, how many an array may have, what was canceled, and what
    that made of a job."""
    there = SimpleNamespace(
        machines=[SlurmNode("b1", frozenset({"nano"}), "idle")], jobs={}, canceled=[], array_limit=1001
    )
    monkeypatch.setattr(slurm, "list_nodes", lambda partition: there.machines)
    monkeypatch.setattr(slurm, "list_jobs", lambda name: dict(there.jobs))
    monkeypatch.setattr(slurm, "array_limit", lambda: there.array_limit)

    def have(job_id, state, node="b1", why="None"):
        there.jobs[job_id] = SlurmJob(job_id, state, node, why)

    def cancel(job_ids):
        there.canceled.extend(job_ids)
        for job_id in {*job_ids} & there.jobs.keys():
            have(job_id, there.canceled_is)

    monkeypatch.setattr(slurm, "cancel", cancel)
    there.have, there.canceled_is = have, "CANCELLED"
    return there


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "multirun" / "sweep").mkdir(parents=True)
    return SubmissionLog(tmp_path / "multirun" / "sweep")
