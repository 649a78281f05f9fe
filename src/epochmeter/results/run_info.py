"""Run metadata: configuration, host, energy source and per-epoch metrics, as reports need them.

Reports read them from run folders, or from MLflow where the folder is not available.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from epochmeter.shared.record import is_steady

EPOCH_METRICS = (
    *("epoch/e2e_s", "epoch/data_stall_s", "epoch/loader_start_s", "epoch/copy_s", "epoch/compute_s"),
    *("epoch/overhead_s", "epoch/energy_j", "epoch/power_mean_w"),
)
"""The per-epoch metrics that reports use."""
UNFINISHED = "unfinished"
DISTURBED = {
    "gpu_shared": "another process used the GPU",
    "throttled": "heat or over-current lowered the clocks",
    "setting_changed": "another program changed a device setting",
    "paused": "the run was paused",
}
"""Possible disturbances of a measurement, by the tags of runs."""


class RunInfo(TypedDict):
    """Metadata of a run; unknown values are None or empty.

    Attributes:
        overrides: Overrides by key: `batch` -> `64`, `+note` -> `mine`.
        rehearsal: The settings that were not applied; empty if the run is a result.
        energy: `source`, what it `covers`, its `domains`, and the `reason` if there is none.
        devices: Number of training devices.
        limited: Number of devices with a power limit.
        ran_on: Platform: `CPU`, `kernel`, `torch`, `git commit` -> value.
        epochs: Metrics by epoch number, without warm-up and partial epochs.
        disturbed: Disturbances of the measurement, by the tags in `DISTURBED`.
        state: How the run ended; `unfinished` without a summary.
    """

    number: int
    sweep: str | None
    host: str | None
    job: Mapping[str, Any]
    overrides: dict[str, str]
    rehearsal: list[str]
    energy: Mapping[str, Any]
    devices: int | None
    limited: int | None
    samples: int | None
    cores: int | None
    storage: Mapping[str, Any]
    ran_on: dict[str, str]
    epochs: dict[int, dict[str, float]]
    disturbed: dict[str, str]
    state: str


def build_run_info(
    job: Mapping[str, Any],
    run: Mapping[str, Any],
    host: Mapping[str, Any],
    windows: Iterable[Mapping[str, Any]],
    summary: Mapping[str, Any] | None,
) -> RunInfo:
    """Return a run's metadata from the contents of its record; KeyError or TypeError if it is damaged."""
    epochs = [window for window in windows if window["window"] == "epoch" and is_steady(window)]
    return {
        "number": int(run["number"]),
        "sweep": run.get("sweep_id"),
        "host": run.get("host"),
        "job": job,
        "overrides": override_values(run["overrides"]),
        "rehearsal": list(run["rehearsal"]),
        "energy": run.get("energy") or {},
        "devices": _device_count(job, run),
        "limited": run.get("power_limit_devices"),
        "samples": ((run.get("dataset") or {}).get("splits") or {}).get("train"),
        "cores": (host.get("cpu") or {}).get("cores"),
        "storage": run.get("storage") or {},
        "ran_on": _platform(run.get("host"), host, run.get("training") or {}),
        "disturbed": {name: text for name, text in run.get("flags", {}).items() if name in DISTURBED},
        "epochs": {epoch["epoch"]: _epoch_metrics(epoch["metrics"]) for epoch in epochs},
        "state": summary["state"] if summary else UNFINISHED,
    }


def override_values(overrides: Iterable[str]) -> dict[str, str]:
    """Return overrides by key: `batch=64` -> `batch`: `64`; an added key keeps its `+`."""
    pairs = (override.partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


def _device_count(job: Mapping[str, Any], run: Mapping[str, Any]) -> int | None:
    """Return the number of training devices: as reported by the training process, else as configured."""
    training = run.get("training") or {}
    if "ranks" in training:
        return int(training["ranks"])
    if "gpus" in training:
        return len(training["gpus"]) or 1
    ranks = (job.get("strategy") or {}).get("ranks")
    return None if ranks is None else int(ranks)


def _platform(hostname: str | None, host: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, str]:
    cpu, git, mode = (host.get(name) or {} for name in ("cpu", "git", "power_mode"))
    memory_bytes = host.get("memory_bytes")
    values = {
        "host": hostname,
        "board": (host.get("board") or {}).get("model"),
        "CPU": ", ".join(filter(None, [cpu.get("model"), f"{cpu['cores']} cores" if cpu.get("cores") else None])),
        "GPU": _count_models([gpu["model"] for gpu in host.get("gpus") or [] if gpu.get("model")]),
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
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def _epoch_metrics(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name in EPOCH_METRICS if (value := metrics.get(name)) is not None}


def _count_models(models: Sequence[str]) -> str:
    """Return models with their number: `2 x H100, A100`."""
    return ", ".join(f"{count} x {model}" if count > 1 else model for model, count in Counter(models).items())
