"""Load runs from their folders, or from MLflow's copies of them. A damaged record is reported, never fatal."""

import atexit
import json
import marshal
import math
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import glob
from io import FileIO
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from epochmeter.report.runs.run import COMPLETED, RUNNING, UNFINISHED, Run, Sweep
from epochmeter.results.reuse import READ_ERRORS, is_run, read_reference, referenced_record
from epochmeter.results.run_info import DISTURBED, EPOCH_METRICS, device_count, platform_info
from epochmeter.results.sweep_files import sort_key
from epochmeter.shared.process_identity import is_alive, recorded_process
from epochmeter.shared.record import SCHEMA, is_steady

MAX_ONE_PROCESS = 1000
"""More records than these are read by two processes: sending runs takes a third of the time to read them."""
CLOCKS = ("cores", "cpu_hz", "gpu_hz", "emc_hz")  # fields of a power mode in host.json
YAML_VALUES = {"True": "true", "False": "false", "None": "null"}  # as Hydra's sweeps write them -> as YAML
EVALUATION = '"window": "val"'  # part of the line of an evaluation
QUALITY_METRICS = ("val/loss", "val/accuracy")
_SHARED: dict[bytes, Any] = {}


def load_sweep(sweeps: Iterable[str | Path], multirun: Path) -> Sweep:
    """Load the runs of one or several sweeps as one; ValueError if there is no such run.

    Args:
        sweeps: Names in `multirun`, folders, or patterns of either; without any, the newest sweep.
    """
    folders = [folder for sweep in sweeps for folder in _matching_folders(sweep, multirun)]
    folders = folders or sweep_folders(multirun)[-1:]
    if not folders:
        raise ValueError("there are no runs yet\n  hint: run `python src/train.py -m experiment=stalls` first")
    return merge_sweeps([read_sweep(folder) for folder in dict.fromkeys(folders)], multirun)


def load_published(sweeps: Sequence[str], multirun: Path, experiment: str, uri: str | None) -> Sweep:
    """Download the records of an MLflow experiment, and load them; ValueError if it is not there or has no such run.

    Args:
        sweeps: Names of sweeps, or patterns of names; without any, the newest sweep.
        uri: MLflow's server or database; None: MLFLOW_TRACKING_URI or the project's database.
    """
    from epochmeter.tracking.load import download_records

    chosen: list[str] = []

    def choose(names: Iterable[str]) -> list[str]:
        ordered = sorted(names, key=lambda name: (sort_key(name), name))
        matching = [name for name in ordered if any(fnmatchcase(name, sweep) for sweep in sweeps)]
        if sweeps and not matching:
            raise ValueError(f"MLflow has no run of sweep={', '.join(sweeps)}. There are: {', '.join(ordered[-5:])}.")
        chosen.extend(matching or ordered[-1:])
        return chosen

    copies = Path(mkdtemp(prefix="epochmeter-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    try:
        download_records(copies, choose, experiment, uri)
    except (ValueError, LookupError) as error:  # no such sweep, database or experiment
        raise ValueError(f"source=mlflow: {error}") from error
    except Exception as error:  # whatever MLflow raises
        raise ValueError(
            f"cannot load runs from MLflow: {error_text(error)}\n"
            "  hint: start MLflow, or give its address: `tracking=server tracking.uri=http://HOST:5000`"
        ) from error
    # A run that has not ended has no files in MLflow.
    sweep = load_sweep([name for name in chosen if has_runs(copies / name)] or chosen, copies)
    return replace(sweep, folder=multirun / sweep.folder.relative_to(copies))


def read_sweep(folder: Path) -> Sweep:
    """Read the runs in a sweep's folder, or the single run that the folder is."""
    folders = run_folders(folder)
    if len(folders) <= MAX_ONE_PROCESS:
        results = _load_each(folders)
    else:
        with suppress(ImportError):
            import pydantic_core  # noqa: F401  # for `_parse`; of MLflow
        half = len(folders) // 2
        with ProcessPoolExecutor(1, get_context("fork")) as second:
            later = second.submit(_load_each, folders[half:])
            results = [*_load_each(folders[:half]), *later.result()]
    unreadable = {run.name: error for run, error in zip(folders, results, strict=True) if isinstance(error, str)}
    return Sweep(folder, [run for run in results if isinstance(run, Run)], unreadable)


def run_folders(folder: Path) -> list[Path]:
    """Return the run folders with a record, by number."""
    if is_run(folder):
        return [folder]
    names = os.listdir(folder) if folder.is_dir() else []
    return [folder / name for name in sorted(filter(str.isdecimal, names), key=int) if is_run(folder / name)]


def sweep_folders(multirun: Path) -> list[Path]:
    """Return the folders with runs, the newest last, without those that may not be read."""
    folders = multirun.iterdir() if multirun.is_dir() else []
    return _with_runs(folder for folder in folders if os.access(folder, os.R_OK | os.X_OK))


def has_runs(folder: Path) -> bool:
    """Whether a folder is a run's or has any, without looking at all of them."""
    names = os.listdir(folder) if folder.is_dir() else []
    return is_run(folder) or any(name.isdecimal() and is_run(folder / name) for name in names)


def merge_sweeps(sweeps: Sequence[Sweep], folder: Path) -> Sweep:
    """Return several sweeps as one in their common folder, with consecutive numbers and each measured run once."""
    if len(sweeps) == 1:
        return sweeps[0]
    runs = [run for sweep in sweeps for run in sweep.runs]
    owners = {run.name: run for run in sorted(runs, key=lambda run: not run.reused)}
    unique = [run for run in runs if owners[run.name] is run]
    unreadable = {f"{sweep.folder.name}/{name}": why for sweep in sweeps for name, why in sweep.unreadable.items()}
    return Sweep(folder, [replace(run, number=number) for number, run in enumerate(unique)], unreadable)


def load_run(folder: Path) -> Run:
    """Load the run in a folder, or the run that it reuses under its own number; raises `READ_ERRORS`."""
    reference = read_reference(folder)
    if reference is None:
        return _load_record(folder)
    record = referenced_record(folder)
    if record is None:
        raise ValueError(f"it reuses {reference['run']}, which is gone: the sweep's command measures it again")
    own, sweep = reference["overrides"], folder.absolute().parent.name
    run = replace(_load_record(record.folder), **_overridden(own), number=int(folder.name), sweep=sweep)
    return replace(run, reused=reference["run"])


def typed_keys(overrides: Iterable[str]) -> dict[str, str]:
    """Return overrides as typed, by key without a leading plus sign: `+note=mine` -> `note`: `mine`."""
    pairs = (override.partition("=") for override in overrides)
    return {key.lstrip("+"): YAML_VALUES.get(value, value) for key, _, value in pairs}


def error_text(error: Exception) -> str:
    """Return the path and the cause of a file error; else the first line, with the type unless it is a ValueError."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = (str(error).splitlines() or [""])[0]
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def _matching_folders(sweep: str | Path, multirun: Path) -> list[Path]:
    """Return the folders with runs of a sweep's name, of a path, or of a pattern of either, the newest last."""
    for root in (multirun, Path()):
        if matching := _with_runs(root / name for name in glob(str(sweep), root_dir=root) or [str(sweep)]):
            return [folder.absolute() for folder in matching]
    last = sweep_folders(multirun)[-1:]
    raise ValueError(
        f"no runs in `{sweep}`: there is no job.json in it or in its numbered folders\n  hint: "
        + (f"the last sweep with runs is {last[0].name}" if last else "run `python src/train.py` first")
    )


def _with_runs(folders: Iterable[Path]) -> list[Path]:
    return sorted(filter(has_runs, folders), key=lambda folder: (sort_key(folder.name), folder.name))


def _load_each(folders: Sequence[Path]) -> list[Run | str]:
    """Return the run in each folder, or why it cannot be read."""
    results: list[Run | str] = []
    for folder in folders:
        try:
            run = load_run(folder)
            _ = run.fingerprint  # slow for many runs; two processes share the work here
            results.append(run)
        except READ_ERRORS as error:
            results.append(error_text(error))
    return results


def _load_record(folder: Path) -> Run:
    """Load a record; a metric that is not a finite number is absent, and a read error."""
    description = _parse(_content(f"{folder}/job.json"))
    if (schema := description.get("schema", SCHEMA)) != SCHEMA:
        raise ValueError(f"it is of schema {schema}, and schema {SCHEMA} is read here: report it where it was written")
    job, run = {key: _share(value) for key, value in description["job"].items()}, description["run"]
    host = _parse_host(_content_or_empty(f"{folder}/host.json"))
    epochs, evaluated, broken_lines = _windows(folder)
    summary = _summary(folder, run)
    metrics = _finite(summary["metrics"]) | evaluated
    errors = [f"{name}: not finite" for name, value in summary["metrics"].items() if value and name not in metrics]
    energy = run.get("energy") or {}
    is_metered = "steady/energy_j" in metrics or "total/energy_j" in metrics
    return Run(
        **_overridden(run["overrides"]),
        **_power_modes(host),
        number=int(run["number"]),
        job=job,
        metrics=metrics,
        state=summary["state"],
        failure=(summary.get("failure") or {}).get("message", "").partition("\n")[0],
        energy_covers=energy.get("covers") if is_metered else None,
        energy_domains=(energy.get("domains") or ()) if is_metered else (),
        no_energy=None if is_metered else energy.get("reason"),
        cores=(host.get("cpu") or {}).get("cores"),
        storage=_share(run.get("storage") or {}),
        epochs=epochs,
        rehearsal=list(run["rehearsal"]),
        devices=device_count(job, run),
        power_limited_devices=run.get("power_limit_devices"),
        samples=((run.get("dataset") or {}).get("splits") or {}).get("train"),
        sweep=run.get("sweep_id") or folder.parent.name,
        folder=folder,
        host=run.get("host"),
        energy_source=energy.get("source"),
        started=run.get("started", ""),
        platform=_share(platform_info(run.get("host"), host, run.get("training") or {})),
        disturbed={name: text for name, text in run.get("flags", {}).items() if name in DISTURBED},
        read_errors=errors + ([f"epochs.jsonl: {broken_lines} unreadable lines"] if broken_lines else []),
    )


def _overridden(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of a run that follow from its overrides."""
    keys = typed_keys(overrides)
    added = [override.partition("=")[0] for override in overrides if override.startswith("+")]
    return {"keys": keys, "experiment": keys.get("experiment"), "added": added}


def _power_modes(host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the board, its power mode and the clocks of all modes; a mode without a unique name is named `id:2`."""
    modes, current = host.get("power_modes") or [], (host.get("power_mode") or {}).get("id")
    counts = Counter(mode["name"] for mode in modes)
    names = {mode["id"]: mode["name"] if counts[mode["name"]] == 1 else f"id:{mode['id']}" for mode in modes}
    if current not in names or not all(key in mode for mode in modes for key in CLOCKS):
        return {}
    clocks = {names[mode["id"]]: [mode[key] for key in CLOCKS] for mode in modes}
    board = (host.get("board") or {}).get("model") or "unknown"
    return {"board": board, "mode": names[current], "mode_clocks": _share(clocks)}


def _finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def _share(value: Any) -> Any:
    """Return the same object for equal values: those of most runs of a sweep are, and 10,000 copies need 300 MB."""
    return _SHARED.setdefault(marshal.dumps(value, 2), value) if type(value) in (dict, list) else value


def _parse(text: bytes | str) -> Any:
    """Parse JSON, with pydantic's parser if it is imported: it takes a third of the time, but accepts fewer texts."""
    with suppress(KeyError, ValueError):
        return sys.modules["pydantic_core"].from_json(text, cache_strings="all")
    return json.loads(text)


def _content(path: str) -> bytes:
    with FileIO(path) as file:
        return file.readall()


def _content_or_empty(path: str) -> bytes:
    """Return the content of a file; empty if it cannot be read, so that the run is still loaded."""
    with suppress(OSError):
        return _content(path)
    return b""


@lru_cache(maxsize=16)  # most runs of a sweep have the same, byte for byte
def _parse_host(content: bytes) -> Mapping[str, Any]:
    """Return the description of a host; empty if it is damaged."""
    with suppress(ValueError):
        host = _parse(content)
        return host if isinstance(host, dict) else {}
    return {}


def _summary(folder: Path, run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the summary; a `completed` run without its completed.json is `unfinished`."""
    try:
        summary: dict[str, Any] = _parse(_content(f"{folder}/summary.json"))
    except FileNotFoundError:
        process = recorded_process(run)
        is_running = process.host == platform.node() and is_alive(process)  # not known of other hosts
        return {"metrics": {}, "state": RUNNING if is_running else UNFINISHED}
    if summary["state"] == COMPLETED:
        identity = None
        with suppress(OSError, ValueError):
            identity = _parse(_content(f"{folder}/completed.json"))["identity"]
        summary["state"] = COMPLETED if identity == run["identity"] else UNFINISHED
    return summary


def _windows(folder: Path) -> tuple[dict[int, Mapping[str, float]], dict[str, float], int]:
    """Return the metrics of representative epochs, those of the last evaluation, and how many lines are damaged.

    An incomplete last line is not counted, as it is still being written.
    """
    *lines, _ = _content_or_empty(f"{folder}/epochs.jsonl").decode("utf-8", errors="replace").split("\n")
    evaluations = [line for line in lines if EVALUATION in line]
    windows = [_parse_window(line) for line in lines if EVALUATION not in line]
    epochs: dict[int, Mapping[str, float]] = {}
    for window in windows:
        if window and window["window"] == "epoch" and is_steady(window):
            epochs[window["epoch"]] = _finite_of(window, EPOCH_METRICS)
    last = _parse_window(evaluations[-1]) if evaluations else None
    return epochs, _finite_of(last, QUALITY_METRICS) if last else {}, windows.count(None)


def _finite_of(window: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    metrics = window["metrics"]
    return _finite({name: metrics[name] for name in names if name in metrics})


def _parse_window(line: str) -> dict[str, Any] | None:
    try:
        window = _parse(line)
        is_window = isinstance(window["window"], str) and isinstance(window["epoch"], int)
        return window if is_window and isinstance(window["metrics"], dict) else None
    except (ValueError, KeyError, TypeError):
        return None
