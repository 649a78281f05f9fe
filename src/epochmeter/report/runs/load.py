"""Load runs from their folders or from MLflow. A damaged record is reported, never fatal."""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from epochmeter.report.runs.run import COMPLETED, NOT_COMPLETED, TOO_SHORT, Run, Sweep
from epochmeter.results.reuse import REFERENCE, read_reference, referenced_record
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import SCHEMA, is_steady
from epochmeter.sweep.sweep_folder import sort_key

MAX_ONE_PROCESS = 1000
"""More records than these are read by two processes: sending runs takes a third of the time to read them."""
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors of reading a damaged record."""
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
RECORDS, MLFLOW = "records", "mlflow"
EXAMPLE = "python src/train.py -m experiment=stalls"


def load_runs(
    sweeps: Sequence[str],
    study: str | None,
    source: str,
    multirun: Path,
    download: Callable[[Path, Callable[[Iterable[str]], Iterable[str]]], None],
) -> Sweep:
    """Load runs as one sweep.

    Args:
        sweeps: Names, patterns of names, or folders; without any, the newest sweep.
        study: Only the runs of this `experiment=`, of all sweeps if none is named.
        source: `records` or `mlflow`.
        multirun: Folder of all sweeps.
        download: Downloads records from MLflow to a folder, of the sweeps that a function chooses from all.

    Raises:
        ValueError: There is no such run; the message suggests what to run or to name.
    """
    if source == RECORDS:
        return _from_folders(sweeps, study, multirun)
    if source != MLFLOW:
        raise ValueError(f"source={source}: give records or mlflow.")
    folder = Path(tempfile.mkdtemp(prefix="epochmeter-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        download(folder, partial(_choose, sweeps, study))
    except Exception as error:  # whatever MLflow raises
        raise ValueError(f"source=mlflow: the runs cannot be loaded: {error_text(error)}") from error
    sweep = _from_folders(sweeps, study, folder)
    return replace(sweep, folder=multirun / os.path.relpath(sweep.folder, folder))


def _choose(sweeps: Sequence[str], study: str | None, names: Iterable[str]) -> list[str]:
    """Return the names that match any sweep; without sweeps, the newest one, or all for a study."""
    ordered = sorted(names, key=lambda name: (sort_key(name), name))
    if sweeps:
        return [name for name in ordered if any(fnmatchcase(name, sweep) for sweep in sweeps)]
    return ordered[-1:] if study is None else ordered


def read(folder: Path) -> Sweep:
    """Read the runs in a sweep's folder, or the single run that the folder is."""
    folders = run_folders(folder)
    results = _load_in_parallel(folders) if len(folders) > MAX_ONE_PROCESS else _load_each(folders)
    unreadable = {run.name: error for run, error in zip(folders, results, strict=True) if isinstance(error, str)}
    return Sweep(folder, [run for run in results if isinstance(run, Run)], unreadable)


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders with a record, by number."""
    if _is_run(str(folder)):
        return [folder]
    if not folder.is_dir():
        return []
    runs = (name for name in os.listdir(folder) if name.isdecimal() and _is_run(f"{folder}/{name}"))
    return [folder / name for name in sorted(runs, key=int)]


def has_runs(folder: Path) -> bool:
    """Whether a folder is a run's or has any, without looking at all of them."""
    if _is_run(str(folder)):
        return True
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return any(entry.name.isdecimal() and _is_run(entry.path) for entry in entries)


def newest_sweep(multirun: Path) -> Path | None:
    """Return the newest sweep that has runs, if any."""
    if not multirun.is_dir():
        return None
    folders = sorted(multirun.iterdir(), key=lambda folder: (sort_key(folder.name), folder.name))
    return next((folder for folder in reversed(folders) if has_runs(folder)), None)


def merge_sweeps(sweeps: Sequence[Sweep], folder: Path) -> Sweep:
    """Return several sweeps as one in their common folder, with consecutive numbers and each measured run once."""
    if len(sweeps) == 1:
        return sweeps[0]
    runs = [run for sweep in sweeps for run in sweep.runs]
    owners = {run.name: run for run in sorted(runs, key=lambda run: not run.reused)}
    unique = [run for run in runs if owners[run.name] is run]
    unreadable = {f"{sweep.folder.name}/{name}": why for sweep in sweeps for name, why in sweep.unreadable.items()}
    return Sweep(folder, [replace(run, number=number) for number, run in enumerate(unique)], unreadable)


def with_links(sweep: Sweep, links: Mapping[str, str]) -> Sweep:
    """Return a sweep whose runs have the addresses of their pages, by `sweep/number` of the run."""
    return replace(sweep, runs=[replace(run, link=links.get(run.name, run.link)) for run in sweep.runs])


YAML_VALUES = {"True": "true", "False": "false", "None": "null"}
"""Values of overrides as Hydra's sweeps write them -> as one types them."""


def load_run(folder: Path) -> Run:
    """Load the run in a folder, or the run that it reuses under its own number; raises the errors in `DAMAGED`."""
    reference = read_reference(folder)
    if reference is None:
        return _load_record(folder)
    record = referenced_record(folder)
    if record is None:
        raise ValueError(f"it reuses {reference['run']}, which is gone: the sweep's command measures it again")
    own = override_values(reference["overrides"])
    return replace(
        _load_record(record.folder),
        number=int(folder.name),
        sweep=folder.absolute().parent.name,
        keys=_keys(own),
        experiment=own.get("experiment"),
        added=[key for key in own if key.startswith("+")],
        reused=reference["run"],
    )


def error_text(error: Exception) -> str:
    """Return the first line of an error, with its type unless it is a ValueError."""
    text = (str(error).splitlines() or [""])[0]
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def _make_run(
    folder: Path,
    description: Mapping[str, Any],
    host: Mapping[str, Any],
    windows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any] | None,
    read_errors: Sequence[str],
) -> Run:
    """Return a run from the contents of its record; a metric that is no finite number is absent, and a read error."""
    job, run = description["job"], description["run"]
    measured = summary["metrics"] if summary else {}
    state = summary["state"] if summary else UNFINISHED
    metrics = finite_metrics(measured)
    infinite = [name for name, value in measured.items() if value is not None and name not in metrics]
    overrides = override_values(run["overrides"])
    energy = run.get("energy") or {}
    metered = "steady/energy_j" in metrics or "total/energy_j" in metrics
    return Run(
        number=int(run["number"]),
        job=job,
        keys=_keys(overrides),
        metrics=metrics,
        state=state,
        excluded_because=_excluded_because(folder, run, state, metrics),
        energy_covers=energy.get("covers") if metered else None,
        energy_domains=(energy.get("domains") or ()) if metered else (),
        no_energy=None if metered else energy.get("reason") or "no energy was measured",
        cores=(host.get("cpu") or {}).get("cores"),
        storage=run.get("storage") or {},
        epochs={
            window["epoch"]: finite_metrics({name: window["metrics"].get(name) for name in EPOCH_METRICS})
            for window in windows
            if window["window"] == "epoch" and is_steady(window)
        },
        rehearsal=list(run["rehearsal"]),
        devices=_device_count(job, run),
        power_limited_devices=run.get("power_limit_devices"),
        samples=((run.get("dataset") or {}).get("splits") or {}).get("train"),
        sweep=run.get("sweep_id") or folder.parent.name,
        folder=folder,
        host=run.get("host"),
        experiment=overrides.get("experiment"),
        energy_source=energy.get("source"),
        platform=_platform(run.get("host"), host, run.get("training") or {}),
        disturbed={name: text for name, text in run.get("flags", {}).items() if name in DISTURBED},
        added=[key for key in overrides if key.startswith("+")],
        read_errors=[*(f"{name} is no finite number" for name in infinite), *read_errors],
    )


def override_values(overrides: Iterable[str]) -> dict[str, str]:
    """Return overrides by key: `batch=64` -> `batch`: `64`; an added key keeps its `+`."""
    pairs = (override.partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


def finite_metrics(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the metrics that are finite numbers."""
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def _excluded_because(folder: Path, run: Mapping[str, Any], state: str, metrics: Mapping[str, float]) -> str | None:
    if state != COMPLETED or not _is_completed(f"{folder}/completed.json", run["identity"]):
        return f"{NOT_COMPLETED} ({state})"
    if run["rehearsal"]:
        return f"a rehearsal ({'; '.join(run['rehearsal'])})"
    return None if "steady/e2e_s" in metrics else TOO_SHORT


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


def _count_models(models: Sequence[str]) -> str:
    """Return models with their number: `2 x H100, A100`."""
    return ", ".join(f"{count} x {model}" if count > 1 else model for model, count in Counter(models).items())


# Folders


def _from_folders(sweeps: Sequence[str], study: str | None, multirun: Path) -> Sweep:
    loaded = [_only_study(read(folder), study) for folder in _sweep_folders(sweeps, study, multirun)]
    return merge_sweeps([sweep for sweep in loaded if sweep.runs or sweep.unreadable], multirun)


def _sweep_folders(sweeps: Sequence[str], study: str | None, multirun: Path) -> list[Path]:
    if sweeps:
        folders = list(dict.fromkeys(folder for sweep in sweeps for folder in _matching_folders(sweep, multirun)))
    elif study is None:
        folders = [folder for folder in [newest_sweep(multirun)] if folder]
    else:
        folders = _folders_like(multirun)
    if not folders:
        raise ValueError(f"There are no runs yet. Run first: {EXAMPLE}")
    if study is None:
        return folders
    studies = {folder: _studies(folder) for folder in folders}
    matching = [folder for folder, names in studies.items() if study in names]
    if not matching:
        studied = dict.fromkeys(name for names in studies.values() for name in names)
        other = f"There are runs of: {', '.join(studied)}." if studied else "There are runs of none."
        raise ValueError(f"study={study}: no run took it. {other} Run: python src/train.py -m experiment={study}")
    return matching


def _matching_folders(sweep: str, multirun: Path) -> list[Path]:
    """Return the folders of a sweep's name, of a pattern of names, or of a path."""
    for folder in (multirun / sweep, Path(sweep)):
        if has_runs(folder):
            return [folder.absolute()]
    if matching := _folders_like(multirun, sweep):
        return matching
    last = newest_sweep(multirun)
    other = f"The last one that has is {last.name}." if last else "None has: run python src/train.py first."
    raise ValueError(f"sweep={sweep}: no runs there: no job.json in it or in its numbered folders. {other}")


def _folders_like(multirun: Path, pattern: str = "*") -> list[Path]:
    """Return the folders of sweeps whose names match a pattern, by name."""
    named = (folder for folder in multirun.iterdir() if fnmatchcase(folder.name, pattern)) if multirun.is_dir() else ()
    return sorted(folder for folder in named if has_runs(folder))


def _studies(folder: Path) -> list[str]:
    """Return the studies (`experiment=`) of the runs in a sweep's folder."""
    studies = []
    for run in run_folders(folder):
        try:
            source = read_reference(run) or read_json(run / "job.json")["run"]
            studies.append(override_values(source["overrides"]).get("experiment"))
        except DAMAGED:
            continue
    return [name for name in dict.fromkeys(studies) if name]


def _only_study(sweep: Sweep, study: str | None) -> Sweep:
    return sweep if study is None else replace(sweep, runs=[run for run in sweep.runs if run.experiment == study])


def _keys(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return overrides as typed, by key without a leading plus sign."""
    return {key.lstrip("+"): YAML_VALUES.get(value, value) for key, value in overrides.items()}


# Records


def _is_run(folder: str) -> bool:
    """Whether a folder has a record or a reference to a reused run."""
    return os.path.exists(f"{folder}/job.json") or os.path.exists(f"{folder}/{REFERENCE}")


def _load_each(folders: Sequence[Path]) -> list[Run | str]:
    """Return the run in each folder, or why it cannot be read."""
    results: list[Run | str] = []
    for folder in folders:
        try:
            results.append(load_run(folder))
        except DAMAGED as error:
            results.append(error_text(error))
    return results


def _load_in_parallel(folders: Sequence[Path]) -> list[Run | str]:
    """Return the same, with half of the runs loaded by a second process."""
    half = len(folders) // 2
    with ProcessPoolExecutor(1, get_context("fork")) as second:
        later = second.submit(_load_each, folders[half:])
        return [*_load_each(folders[:half]), *later.result()]


def _load_record(folder: Path) -> Run:
    """Load a record; raises the errors in `DAMAGED`, and ValueError for one of another schema."""
    description = _json(f"{folder}/job.json")
    if (schema := description.get("schema", SCHEMA)) != SCHEMA:
        raise ValueError(f"it is of schema {schema}, and schema {SCHEMA} is read here: report it where it was written")
    windows, broken_lines = _windows(f"{folder}/epochs.jsonl")
    try:
        summary = _json(f"{folder}/summary.json")
    except FileNotFoundError:
        summary = None
    errors = [f"{broken_lines} of the lines of epochs.jsonl cannot be read"] if broken_lines else []
    return _make_run(folder, description, _host(f"{folder}/host.json"), windows, summary, errors)


def _json(path: str) -> Any:
    return json.loads(_bytes(path))  # half the time of reading text


def _bytes(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _host(path: str) -> Mapping[str, Any]:
    """Return the description of the host; empty if it is lost, which costs the run nothing else."""
    try:
        return _parse_host(_bytes(path))
    except (OSError, ValueError):
        return {}


@lru_cache(maxsize=16)  # most runs of a sweep have the same, byte for byte
def _parse_host(content: bytes) -> Mapping[str, Any]:
    host = json.loads(content)
    return host if isinstance(host, dict) else {}


def _is_completed(path: str, identity: str) -> bool:
    try:
        return bool(_json(path)["identity"] == identity)
    except (OSError, ValueError):
        return False


def _windows(path: str) -> tuple[list[Mapping[str, Any]], int]:
    """Return a record's windows, and the number of damaged lines, without an incomplete last one."""
    try:
        text = _bytes(path).decode("utf-8", errors="replace")
    except OSError:
        return [], 0
    *lines, _ = text.split("\n")
    try:
        windows = json.loads(f"[{','.join(lines)}]")  # at once, half the time of line by line
        if len(windows) == len(lines) and all(map(_is_window, windows)):
            return windows, 0
    except ValueError:
        pass
    parsed = [_parse_window(line) for line in lines]
    return [window for window in parsed if window], parsed.count(None)


def _parse_window(line: str) -> Mapping[str, Any] | None:
    try:
        window = json.loads(line)
    except ValueError:
        return None
    return window if _is_window(window) else None


def _is_window(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("window"), str)
        and isinstance(value.get("epoch"), int)
        and isinstance(value.get("metrics"), dict)
    )
