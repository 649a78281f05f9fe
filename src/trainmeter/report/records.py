"""Records of runs, read as rows: each file once, and what is broken is named and never fatal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from trainmeter.record import SCHEMA
from trainmeter.report.rows import TOO_SHORT, WHOLE, Row, Sweep

MANY = 1000
"""More records than these are read by two processes: to hand rows over takes a third of the time to read them."""
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a broken record raises."""


def read(folder: Path) -> Sweep:
    """The runs of a sweep's folder, or the one run that the folder is; a broken record is named, never fatal."""
    runs = run_folders(folder)
    tried = _beside(runs) if len(runs) > MANY else _tried(runs)
    unreadable = {run.name: told for run, told in zip(runs, tried, strict=True) if isinstance(told, str)}
    return Sweep(folder, [told for told in tried if isinstance(told, Row)], unreadable)


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs that hold a record, by number."""
    if (folder / "job.json").exists():
        return [folder]
    if not folder.is_dir():
        return []
    runs = [run for run in folder.iterdir() if run.name.isdecimal() and (run / "job.json").exists()]
    return sorted(runs, key=lambda run: int(run.name))


def newest(multirun: Path) -> Path | None:
    """The last sweep that has runs; None where there is none."""
    sweeps = sorted(multirun.iterdir(), reverse=True) if multirun.is_dir() else []
    return next((sweep for sweep in sweeps if run_folders(sweep)), None)


def row(folder: Path) -> Row:
    """A run's row; raises what reading a broken record raises, and ValueError for one of another schema."""
    described = _json(folder / "job.json")
    if (schema := described.get("schema", SCHEMA)) != SCHEMA:
        raise ValueError(f"it is of schema {schema}, and schema {SCHEMA} is read here: report it where it was written")
    job, run = described["job"], described["run"]
    summary, host = _read(folder / "summary.json"), _host(folder)
    energy, keys = run.get("energy") or {}, typed(run["overrides"])
    metrics, infinite = finite(summary["metrics"] if summary else {})
    epochs, broken_lines = _epochs(folder)
    state = summary["state"] if summary else "unfinished"
    measured = "steady/energy_j" in metrics or "total/energy_j" in metrics
    return Row(
        number=int(run["number"]),
        job=job,
        keys=keys,
        metrics=metrics,
        state=state,
        left_out=_left_out(folder, run, state, metrics),
        energy_covers=energy.get("covers") if measured else None,
        no_energy=None if measured else energy.get("reason") or "no energy was measured",
        cores=(host.get("cpu") or {}).get("cores"),
        storage=run.get("storage") or {},
        epochs=[finite(epoch["metrics"])[0] for epoch in epochs],
        rehearsal=run["rehearsal"],
        devices=_devices(job, run),
        samples=((run.get("dataset") or {}).get("splits") or {}).get("train"),
        sweep=run.get("sweep_id") or folder.parent.name,
        folder=folder,
        host=run.get("host"),
        traced=any(epoch.get("traced") for epoch in epochs),
        experiment=keys.get("experiment"),
        energy_source=energy.get("source"),
        differences=differences(host, run),
        flaws=[
            *(f"{name} is no finite number" for name in infinite),
            *([f"{broken_lines} of the lines of epochs.jsonl cannot be read"] if broken_lines else []),
        ],
    )


def typed(overrides: Iterable[str]) -> dict[str, str]:
    """`batch=64` -> `batch`: `64`."""
    pairs = (override.partition("=") for override in overrides)
    return {key.lstrip("+"): value for key, _, value in pairs}


def finite(metrics: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Metrics that are finite numbers, and the names of those that are not; what is null was absent all along."""
    known = {name: value for name, value in metrics.items() if value is not None}
    kept = {name: value for name, value in known.items() if math.isfinite(value)}
    return kept, [name for name in known if name not in kept]


def differences(host: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, str]:
    """What a run ran on and with, as a person would ask for it; what was not written down is left out."""
    training, git, mode = run.get("training") or {}, host.get("git") or {}, host.get("power_mode") or {}
    memory_bytes = host.get("memory_bytes")
    told = {
        "host": run.get("host"),
        "board": (host.get("board") or {}).get("model"),
        "CPU": _counted([(host.get("cpu") or {}).get("model")], (host.get("cpu") or {}).get("cores"), "cores"),
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


def reason(error: Exception) -> str:
    """The first line of an error, after its kind where it would say little by itself."""
    text = (str(error).splitlines() or [""])[0]
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def _tried(runs: Sequence[Path]) -> list[Row | str]:
    """The row of each run's folder, or why it cannot be read."""
    told: list[Row | str] = []
    for run in runs:
        try:
            told.append(row(run))
        except BROKEN as error:
            told.append(reason(error))
    return told


def _beside(runs: Sequence[Path]) -> list[Row | str]:
    """The same, one half of them read by a second process meanwhile."""
    half = len(runs) // 2
    with ProcessPoolExecutor(1, get_context("fork")) as second:
        later = second.submit(_tried, runs[half:])
        return [*_tried(runs[:half]), *later.result()]


def _json(path: Path) -> Any:
    """What a file holds, read as bytes: half the time of a text's."""
    with open(path, "rb") as file:
        return json.loads(file.read())


def _read(path: Path) -> Any:
    """What a file of a record holds; None where it is not there."""
    try:
        return _json(path)
    except FileNotFoundError:
        return None


def _host(folder: Path) -> Mapping[str, Any]:
    """What is known of the host; what is lost is not known, and costs the run nothing else."""
    try:
        host = _json(folder / "host.json")
    except (OSError, ValueError):
        return {}
    return host if isinstance(host, dict) else {}


def _left_out(folder: Path, run: Mapping[str, Any], state: str, metrics: Mapping[str, float]) -> str | None:
    if state != WHOLE or not _is_whole(folder, run["identity"]):
        return f"not whole ({state})"
    if run["rehearsal"]:
        return f"a rehearsal ({'; '.join(run['rehearsal'])})"
    if "steady/e2e_s" not in metrics:
        return TOO_SHORT
    return None


def _is_whole(folder: Path, identity: str) -> bool:
    try:
        return bool(_json(folder / "whole.json")["identity"] == identity)
    except (OSError, ValueError):
        return False


def _devices(job: Mapping[str, Any], run: Mapping[str, Any]) -> int | None:
    """How many devices trained: what the worker told of its ranks or its GPUs, or else what was asked for."""
    told = run.get("training") or {}
    if "ranks" in told:
        return int(told["ranks"])
    if "gpus" in told:
        return len(told["gpus"]) or 1
    asked = (job.get("strategy") or {}).get("ranks")
    return None if asked is None else int(asked)


def _epochs(folder: Path) -> tuple[list[Mapping[str, Any]], int]:
    """Its whole epochs, and how many lines cannot be read; a last one that was cut short is no line yet."""
    try:
        text = (folder / "epochs.jsonl").read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return [], 0
    windows = [_window(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    epochs = [window for window in windows if window and window["window"] == "epoch"]
    whole = [epoch for epoch in epochs if not (epoch.get("partial") or epoch.get("warmup"))]
    return whole, windows.count(None)


def _window(line: str) -> Mapping[str, Any] | None:
    """A window from its line; None where that is broken."""
    try:
        window = json.loads(line)
        return window if isinstance(window["window"], str) and isinstance(window["metrics"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None


def _counted(models: Sequence[str | None], count: int | None = None, of: str = "") -> str | None:
    """`2 x H100`; `Xeon, 8 cores`."""
    named = [model for model in models if model]
    kinds = dict.fromkeys(named)
    texts: Iterator[str] = (f"{named.count(kind)} x {kind}" if named.count(kind) > 1 else kind for kind in kinds)
    return ", ".join([*texts, *([f"{count} {of}"] if count else [])]) or None
