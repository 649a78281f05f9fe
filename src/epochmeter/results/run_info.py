"""What is known of a run beside what its epochs came to: what was asked, what it ran on, how it was metered.

A report reads these of a run's record, and MLflow is handed them to be read again where the record is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from epochmeter.shared.record import is_steady

EPOCH = (
    "epoch/e2e_s",
    "epoch/fetch_stall_s",
    "epoch/loader_start_s",
    "epoch/copy_s",
    "epoch/compute_s",
    "epoch/overhead_s",
    "epoch/energy_j",
    "epoch/power_mean_w",
)
"""What is told of each epoch by itself; all that a report reads of one."""


class Facts(TypedDict):
    """A run; what was not written down is None, or empty."""

    number: int
    sweep: str | None
    host: str | None
    job: dict[str, Any]
    typed: dict[str, str]
    """What was typed for it, as it was: `batch` -> `64`, `+note` -> `mine`."""
    rehearsal: list[str]
    """In what it was one."""
    energy: dict[str, Any]
    """Its `source`, what it `covers`, the `domains` that make it up, and the `reason` why there is none."""
    devices: int | None
    """How many trained."""
    limited: int | None
    """How many devices a power limit was set on, each of them its watts."""
    samples: int | None
    """How many there are to train on."""
    cores: int | None
    storage: dict[str, Any]
    ran_on: dict[str, str]
    """`CPU`, `kernel`, `torch`, `git commit` -> what that was."""
    epochs: dict[int, dict[str, float]]
    """Number of an epoch -> what is told of it."""
    disturbed: dict[str, str]
    """Disturbances of the measurement, by the names of the tags in `DISTURBED`."""
    state: str
    """How it ended, as its summary says; `unfinished` while it has none."""


UNFINISHED = "unfinished"
DISTURBED = {
    "gpu_shared": "another process used the GPU",
    "throttled": "heat or over-current lowered the clocks",
    "knob_changed": "another program changed a device setting",
    "paused": "the run was paused",
}
"""Possible disturbances of a measurement, by the tags of runs."""


def facts(
    job: dict[str, Any],
    run: Mapping[str, Any],
    host: Mapping[str, Any],
    windows: Iterable[Mapping[str, Any]],
    summary: Mapping[str, Any] | None,
) -> Facts:
    """The facts of a run, from what its record holds; raises KeyError or TypeError for one that is broken."""
    epochs = [window for window in windows if window["window"] == "epoch"]
    whole = [epoch for epoch in epochs if is_steady(epoch)]
    return {
        "number": int(run["number"]),
        "sweep": run.get("sweep_id"),
        "host": run.get("host"),
        "job": job,
        "typed": typed(run["overrides"]),
        "rehearsal": list(run["rehearsal"]),
        "energy": run.get("energy") or {},
        "devices": devices(job, run),
        "limited": run.get("power_limit_devices"),
        "samples": ((run.get("dataset") or {}).get("splits") or {}).get("train"),
        "cores": (host.get("cpu") or {}).get("cores"),
        "storage": run.get("storage") or {},
        "ran_on": {**({"host": run["host"]} if run.get("host") else {}), **ran_on(host, run.get("training") or {})},
        "disturbed": {name: text for name, text in run.get("marks", {}).items() if name in DISTURBED},
        "epochs": {epoch["epoch"]: told_of(epoch["metrics"]) for epoch in whole},
        "state": summary["state"] if summary else UNFINISHED,
    }


def typed(overrides: Iterable[str]) -> dict[str, str]:
    """`batch=64` -> `batch`: `64`; a key that no default has keeps the `+` that it takes."""
    pairs = (override.partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


def devices(job: Mapping[str, Any], run: Mapping[str, Any]) -> int | None:
    """How many devices trained: what the worker told of its ranks or its GPUs, or else what was asked for."""
    told = run.get("training") or {}
    if "ranks" in told:
        return int(told["ranks"])
    if "gpus" in told:
        return len(told["gpus"]) or 1
    asked = (job.get("strategy") or {}).get("ranks")
    return None if asked is None else int(asked)


def ran_on(host: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, str]:
    """What a run ran on and with, as a person would ask for it; what was not written down is left out."""
    cpu, git, mode = (host.get(name) or {} for name in ("cpu", "git", "power_mode"))
    memory_bytes = host.get("memory_bytes")
    told = {
        "board": (host.get("board") or {}).get("model"),
        "CPU": _counted([cpu.get("model")], cpu.get("cores"), "cores"),
        "GPU": _counted([gpu.get("model") for gpu in host.get("gpus") or []]),
        "memory": f"{memory_bytes / 2**30:.1f} GiB" if memory_bytes else None,
        "OS": host.get("os"),
        "kernel": host.get("kernel"),
        "driver": host.get("driver"),
        "torch": training.get("torch"),
        "Python that trains": training.get("python"),
        "git commit": git.get("commit", "")[:12] + (", changed since" if git.get("dirty") else ""),
        "governor": ", ".join(host.get("governors") or []),
        "power mode": mode.get("name") or mode.get("id"),
    }
    return {name: str(value) for name, value in told.items() if value not in (None, "")}


def told_of(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """What is told of an epoch: what of `EPOCH` it knows."""
    return {name: value for name in EPOCH if (value := metrics.get(name)) is not None}


def _counted(models: Sequence[str | None], count: int | None = None, of: str = "") -> str | None:
    """`2 x H100`; `Xeon, 8 cores`."""
    named = [model for model in models if model]
    kinds = dict.fromkeys(named)
    texts: Iterator[str] = (f"{named.count(kind)} x {kind}" if named.count(kind) > 1 else kind for kind in kinds)
    return ", ".join([*texts, *([f"{count} {of}"] if count else [])]) or None
