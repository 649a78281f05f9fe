"""Jobs for tests: the defaults of conf/train.yaml, with a minimal choice of each group."""

from __future__ import annotations

from typing import Any

from epochmeter.config.schema import Job
from epochmeter.config.suggestions import entry_keys

GROUPS: dict[str, dict[str, Any]] = {
    "device": {"name": "cpu", "accelerator": "cpu", "python": None},
    "model": {"name": "lenet"},
    "dataset": {"name": "digits", "layout": "files", "open": {}},
    "storage": {"name": "project", "root": "data", "medium": None},
    "optimizer": {"name": "sgd"},
    "scheduler": {"name": "none"},
    "strategy": {"name": "single", "ranks": 1},
    "task": {"name": "classification"},
    "meter": {"name": "none", "idle_s": 0},
    "profiler": {"name": "none"},
    "tracking": {"name": "none", "experiment": "epochmeter"},
}


def job_keys(**changed: Any) -> dict[str, Any]:
    """Return the plain keys of a job; a changed mapping is merged into the default one."""
    keys = {**GROUPS, **entry_keys("train")[1]}
    merged = {key: {**keys[key], **value} if isinstance(value, dict) else value for key, value in changed.items()}
    return {**keys, **merged}


def job_of(**changed: Any) -> Job:
    """Return the job of `job_keys`."""
    return Job.from_dict(job_keys(**changed))
