"""Records of runs, read as rows: each file once, and what is broken is named and never fatal."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from epochmeter.report.runs.run import COMPLETED, NOT_COMPLETED, TOO_SHORT, Run, Sweep
from epochmeter.results.reuse import REFERENCE, read_reference, referenced_record
from epochmeter.results.run_info import RunInfo, build_run_info, override_values
from epochmeter.shared.record import SCHEMA
from epochmeter.sweep.sweep_folder import sort_key

MANY = 1000
"""More records than these are read by two processes: to hand rows over takes a third of the time to read them."""
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a broken record raises."""


def read(folder: Path) -> Sweep:
    """The runs of a sweep's folder, or the one run that the folder is; a broken record is named, never fatal."""
    runs = run_folders(folder)
    tried = _beside(runs) if len(runs) > MANY else _tried(runs)
    unreadable = {run.name: told for run, told in zip(runs, tried, strict=True) if isinstance(told, str)}
    return Sweep(folder, [told for told in tried if isinstance(told, Run)], unreadable)


def run_folders(folder: Path) -> list[Path]:
    """The folders of runs that hold a record, by number."""
    if _is_run(str(folder)):
        return [folder]
    if not folder.is_dir():
        return []
    runs = (name for name in os.listdir(folder) if name.isdecimal() and _is_run(f"{folder}/{name}"))
    return [folder / name for name in sorted(runs, key=int)]


def holds_runs(folder: Path) -> bool:
    """Whether a folder is a run's or holds any: without a look at all of them."""
    if _is_run(str(folder)):
        return True
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return any(entry.name.isdecimal() and _is_run(entry.path) for entry in entries)


def _is_run(folder: str) -> bool:
    """Whether a folder has a record or a reference to a reused run."""
    return os.path.exists(f"{folder}/job.json") or os.path.exists(f"{folder}/{REFERENCE}")


def newest(multirun: Path) -> Path | None:
    """The last sweep that has runs; None where there is none."""
    if not multirun.is_dir():
        return None
    folders = sorted(multirun.iterdir(), key=lambda folder: (sort_key(folder.name), folder.name))
    return next((folder for folder in reversed(folders) if holds_runs(folder)), None)


def row(folder: Path) -> Run:
    """A run's row, or the row of the run that it reuses under its own number; raises the same errors as `_row`."""
    told = read_reference(folder)
    if told is None:
        return _row(folder)
    record = referenced_record(folder)
    if record is None:
        raise ValueError(f"it reuses {told['run']}, which is gone: the sweep's command measures it again")
    own = override_values(told["overrides"])
    return replace(
        _row(record.folder),
        number=int(folder.name),
        sweep=folder.absolute().parent.name,
        keys={key.lstrip("+"): value for key, value in own.items()},
        experiment=own.get("experiment"),
        added=[key for key in own if key.startswith("+")],
        reused=told["run"],
    )


def _row(folder: Path) -> Run:
    """A record's row; raises what reading a broken record raises, and ValueError for one of another schema."""
    described = _json(f"{folder}/job.json")
    if (schema := described.get("schema", SCHEMA)) != SCHEMA:
        raise ValueError(f"it is of schema {schema}, and schema {SCHEMA} is read here: report it where it was written")
    windows, broken_lines = _windows(f"{folder}/epochs.jsonl")
    run, summary = described["run"], _read(f"{folder}/summary.json")
    told = build_run_info(described["job"], run, _host(f"{folder}/host.json"), windows, summary)
    told["sweep"] = told["sweep"] or folder.parent.name
    flaws = [f"{broken_lines} of the lines of epochs.jsonl cannot be read"] if broken_lines else []
    whole = _is_completed(f"{folder}/completed.json", run["identity"])
    return make_run(told, summary["metrics"] if summary else {}, whole, folder=folder, read_errors=flaws)


def make_run(
    told: RunInfo,
    measured: Mapping[str, float | None],
    whole: bool,
    *,
    folder: Path | None = None,
    link: str | None = None,
    read_errors: Sequence[str] = (),
) -> Run:
    """The row of a run of which this is told: `completed` says whether all of it is there.

    What is measured and is no finite number is absent, and a flaw.
    """
    metrics, infinite = known(measured)
    energy = told["energy"]
    metered = "steady/energy_j" in metrics or "total/energy_j" in metrics
    return Run(
        number=told["number"],
        job=told["job"],
        keys={key.lstrip("+"): value for key, value in told["typed"].items()},
        metrics=metrics,
        state=told["state"],
        excluded_because=_left_out(told, whole, metrics),
        energy_covers=energy.get("covers") if metered else None,
        energy_domains=(energy.get("domains") or ()) if metered else (),
        no_energy=None if metered else energy.get("reason") or "no energy was measured",
        cores=told["cores"],
        storage=told["storage"],
        epochs={number: known(epoch)[0] for number, epoch in told["epochs"].items()},
        rehearsal=told["rehearsal"],
        devices=told["devices"],
        power_limited_devices=told.get("limited"),  # MLflow may show what was published before that was told
        samples=told["samples"],
        sweep=told["sweep"] or "",
        folder=folder,
        host=told["host"],
        link=link,
        experiment=told["typed"].get("experiment"),
        energy_source=energy.get("source"),
        platform=told["ran_on"],
        disturbed=told.get("disturbed") or {},  # an earlier version may have published the run to MLflow
        added=[key for key in told["typed"] if key.startswith("+")],
        read_errors=[*(f"{name} is no finite number" for name in infinite), *read_errors],
    )


def known(metrics: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Metrics that are finite numbers, and the names of those that are not; what is null was absent all along."""
    kept = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
    return kept, [name for name, value in metrics.items() if value is not None and name not in kept]


def reason(error: Exception) -> str:
    """The first line of an error, after its kind where it would say little by itself."""
    text = (str(error).splitlines() or [""])[0]
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def _tried(runs: Sequence[Path]) -> list[Run | str]:
    """The row of each run's folder, or why it cannot be read."""
    told: list[Run | str] = []
    for run in runs:
        try:
            told.append(row(run))
        except BROKEN as error:
            told.append(reason(error))
    return told


def _beside(runs: Sequence[Path]) -> list[Run | str]:
    """The same, one half of them read by a second process meanwhile."""
    half = len(runs) // 2
    with ProcessPoolExecutor(1, get_context("fork")) as second:
        later = second.submit(_tried, runs[half:])
        return [*_tried(runs[:half]), *later.result()]


def _left_out(told: RunInfo, whole: bool, metrics: Mapping[str, float]) -> str | None:
    if told["state"] != COMPLETED or not whole:
        return f"{NOT_COMPLETED} ({told['state']})"
    if told["rehearsal"]:
        return f"a rehearsal ({'; '.join(told['rehearsal'])})"
    return None if "steady/e2e_s" in metrics else TOO_SHORT


def _json(path: str) -> Any:
    """What a file holds, read as bytes: half the time of a text's."""
    return json.loads(_bytes(path))


def _bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _read(path: str) -> Any:
    """What a file of a record holds; None where it is not there."""
    try:
        return _json(path)
    except FileNotFoundError:
        return None


def _host(path: str) -> Mapping[str, Any]:
    """What is known of the host; what is lost is not known, and costs the run nothing else."""
    try:
        return _host_of(_bytes(path))
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=16)  # most runs of a sweep have the same, byte for byte
def _host_of(content: bytes) -> Mapping[str, Any]:
    host = json.loads(content)
    return host if isinstance(host, dict) else {}


def _is_completed(path: str, identity: str) -> bool:
    try:
        return bool(_json(path)["identity"] == identity)
    except (OSError, ValueError):
        return False


def _windows(path: str) -> tuple[list[Mapping[str, Any]], int]:
    """Its windows, and how many lines cannot be read; a last one that was cut short is no line yet."""
    try:
        text = _bytes(path).decode("utf-8", errors="replace")
    except OSError:
        return [], 0
    *lines, _ = text.split("\n")
    try:
        windows = json.loads(f"[{','.join(lines)}]")  # in one go, half the time of a line at a time
        if len(windows) == len(lines) and all(map(_is_window, windows)):
            return windows, 0
    except ValueError:
        pass
    each = [_window(line) for line in lines]
    return [window for window in each if window], each.count(None)


def _window(line: str) -> Mapping[str, Any] | None:
    """A window from its line; None where that is broken."""
    try:
        window = json.loads(line)
    except ValueError:
        return None
    return window if _is_window(window) else None


def _is_window(read: Any) -> bool:
    return (
        isinstance(read, dict)
        and isinstance(read.get("window"), str)
        and isinstance(read.get("epoch"), int)
        and isinstance(read.get("metrics"), dict)
    )
