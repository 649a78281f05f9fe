"""A simulated Slurm."""

from types import SimpleNamespace

import pytest

from epochmeter.cluster import submit
from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.machine import slurm
from epochmeter.machine.slurm import SlurmJob


@pytest.fixture
def launcher():
    """The launcher's default keys."""
    unset = dict.fromkeys(("partition", "account", "qos", "gres", "time", "options", "python"))
    return {**unset, "mem": 0, "exclusive": True, "setup": [], "poll_s": 0}


@pytest.fixture
def cluster(monkeypatch):
    """Slurm's jobs; `set_job` sets a job's state. Files of nodes are visible at once."""
    simulated = SimpleNamespace(jobs={}, canceled=[])
    monkeypatch.setattr(submit, "FILE_VISIBILITY_S", 0.0)
    monkeypatch.setattr(slurm, "list_jobs", lambda name: dict(simulated.jobs))

    def set_job(job_id, state, node="b1", reason="None"):
        simulated.jobs[job_id] = SlurmJob(job_id, state, "" if state == "PENDING" else node, reason)

    def cancel(job_ids):
        simulated.canceled.extend(job_ids)
        for job_id in {*job_ids} & simulated.jobs.keys():
            set_job(job_id, "CANCELLED")

    monkeypatch.setattr(slurm, "cancel", cancel)
    simulated.set_job = set_job
    return simulated


@pytest.fixture
def log(tmp_path):
    (tmp_path / "multirun" / "sweep").mkdir(parents=True)
    return SubmissionLog(tmp_path / "multirun" / "sweep")
