"""A record as the `Run` of reports: what analyses compute with, checked, and without numbers that are not finite."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from epochmeter.config.printable import printable
from epochmeter.config.rules import MAX_INTEGER
from epochmeter.report.runs.run import Run
from epochmeter.results.documents import Window
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_info import (
    DISTURBED,
    DIVERGED,
    EPOCH_METRICS,
    OVERSUBSCRIBED,
    device_count,
    platform_info,
    typed_keys,
)
from epochmeter.shared.record import is_steady
from epochmeter.shared.renamed import Metrics, current_override

LARGEST_METRIC = 1e100  # products and squares of larger numbers are not finite
COMPUTED = ("batch", "epochs", "repeat", "workers", "warmup_epochs", "target_accuracy", "target_loss")
"""Keys of numbers that analyses compute with."""
CLOCKS = ("cores", "cpu_hz", "gpu_hz", "emc_hz")  # fields of a power mode in host.json
QUALITY_METRICS = ("val/loss", "val/accuracy")


class Overridden(TypedDict):
    """Attributes of `Run` that follow from its overrides."""

    keys: Mapping[str, str]
    experiment: str | None
    added: Sequence[str]


class PowerModes(TypedDict, total=False):
    """Attributes of `Run` on a board with power modes."""

    board: str
    mode: str
    mode_clocks: Mapping[str, Sequence[float]]


def run_of(folder: RunFolder) -> Run:
    """Return the run of a record; `READ_ERRORS` without readable metadata, or if its summary is damaged.

    A metric that is not a finite number, or another file that cannot be read, is absent, and one of `read_errors`.
    """
    job, run, host, verdict = folder.job, folder.run, folder.host, folder.verdict
    check_values(job)
    recorded = (folder.summary or {}).get("metrics", {})
    metrics = Metrics(_finite(recorded) | verdict.metrics | _quality(folder.last("val")))
    loaders = run.training.get("loaders", [])
    is_metered = "steady/energy_j" in metrics or "total/energy_j" in metrics
    return Run(
        **overridden(run.overrides),
        **_power_modes(host),
        number=run.number,
        job=job,
        metrics=metrics,
        state=folder.state,
        failure=folder.failure,
        energy_covers=run.energy.covers if is_metered else None,
        energy_domains=run.energy.domains if is_metered else (),
        no_energy=None if is_metered else run.energy.reason,
        energy_valid=folder.energy_verdict.get("energy_valid"),
        energy_reasons=folder.energy_verdict.get("energy_reasons", []),
        cores=(host.get("cpu") or {}).get("cores"),
        storage=run.storage,
        epochs=_steady_epochs(folder.windows),
        rehearsal=run.rehearsal,
        devices=device_count(job, run.training),
        power_limited_devices=run.power_limit_devices,
        samples=run.training_samples,
        sweep=run.sweep_id or printable(folder.path.parent.name),
        folder=folder.path,
        host=run.host,
        energy_source=run.energy.source,
        started=run.started,
        platform=platform_info(run.host, host, run.training, run.validation),
        disturbed={name: text for name, text in run.flags.items() if name in DISTURBED},
        diverged=run.flags.get(DIVERGED, ""),
        oversubscribed=run.flags.get(OVERSUBSCRIBED, ""),
        read_errors=[*_left_out(recorded, metrics), *folder.errors],
        bottleneck=verdict.bottleneck,
        absent=verdict.absent,
        loaders=loaders,
        loader=loaders[0] if loaders else {key: job[key] for key in ("workers", "persistent_workers") if key in job},
        straggler=(folder.summary or {}).get("straggler"),
        next_steps=(folder.summary or {}).get("next_steps", []),
    )


def check_values(job: Mapping[str, Any]) -> None:
    """Raise ValueError for a configuration with a number that no run can have."""
    for key in COMPUTED:
        if isinstance(value := job.get(key, 0), int | float) and not 0 <= value <= MAX_INTEGER:
            raise ValueError(f"`job.{key}={value}` is not valid")


def overridden(overrides: Sequence[str]) -> Overridden:
    """Return the attributes of a run that follow from its overrides."""
    keys = typed_keys(overrides)
    added = [current_override(override).partition("=")[0] for override in overrides if override.startswith("+")]
    return {"keys": keys, "experiment": keys.get("experiment"), "added": added}


def _power_modes(host: Mapping[str, Any]) -> PowerModes:
    """Return the board, its power mode and the clocks of all modes; a mode without a unique name is named `id:2`."""
    modes, current = host.get("power_modes") or [], (host.get("power_mode") or {}).get("id")
    counts = Counter(mode["name"] for mode in modes)
    names = {mode["id"]: mode["name"] if counts[mode["name"]] == 1 else f"id:{mode['id']}" for mode in modes}
    if current not in names or not all(key in mode for mode in modes for key in CLOCKS):
        return {}
    clocks = {names[mode["id"]]: [mode[key] for key in CLOCKS] for mode in modes}
    board = (host.get("board") or {}).get("model") or "unknown"
    return {"board": board, "mode": names[current], "mode_clocks": clocks}


def _steady_epochs(windows: Iterable[Window]) -> dict[int, Mapping[str, float]]:
    """Return the metrics that reports use of each epoch that is representative."""
    epochs = (window for window in windows if window["window"] == "epoch" and is_steady(window))
    return {epoch["epoch"]: _finite_of(epoch, EPOCH_METRICS) for epoch in epochs}


def _quality(evaluation: Window | None) -> dict[str, float]:
    """Return the quality that an evaluation measured, if there is one."""
    return _finite_of(evaluation, QUALITY_METRICS) if evaluation else {}


def _finite_of(window: Window, names: Iterable[str]) -> dict[str, float]:
    metrics = window["metrics"]
    return _finite({name: metrics[name] for name in names if name in metrics})


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None and abs(value) <= LARGEST_METRIC}


def _left_out(recorded: Mapping[str, float | None], metrics: Mapping[str, float]) -> list[str]:
    """Return which metrics of a summary are left out, and why."""
    absent = {name: value for name, value in recorded.items() if value and name not in metrics}
    return [f"{name}: {'too large' if math.isfinite(value) else 'not finite'}" for name, value in absent.items()]
