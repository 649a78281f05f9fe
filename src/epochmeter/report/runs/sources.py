"""Where the runs of a report come from: records in folders, or MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from epochmeter.report.runs.load import BROKEN, holds_runs, make_run, newest, read, reason, run_folders
from epochmeter.report.runs.run import Run, Sweep
from epochmeter.results.reuse import read_reference
from epochmeter.results.run_info import override_values
from epochmeter.shared.atomic_files import read_json
from epochmeter.sweep.sweep_folder import sort_key

RECORDS, MLFLOW = "records", "mlflow"
FINISHED = "FINISHED"
"""What MLflow calls a run that is completed."""
CURVES = ("epoch/", "val/", "rank_max/", "step/", "power/")
"""What MLflow has a curve of; all else is of the run as a whole, as in a record's summary."""
FIRST = "python src/train.py -m experiment=stalls"
"""What to run where there is nothing to tell of."""
Shown = Mapping[str, Any]
"""A run as MLflow shows it: `run_id`, `sweep_id`, `reused_as`, `metrics`, `tags`, `facts`, `status`, `link`."""


def found(
    sweeps: Sequence[str],
    study: str | None,
    source: str,
    multirun: Path,
    shown: Callable[[], Sequence[Shown]],
) -> Sweep:
    """The runs of these sweeps (names, patterns of names, folders), or of the last one where none is named.

    Of a `study`, all runs that took it as their `experiment=`. `source` is `records`, or `mlflow`, of which
    `shown` gives the runs. Raises ValueError where there is no run, with what to run or to name.
    """
    if source == RECORDS:
        return _of_records(sweeps, study, multirun)
    if source == MLFLOW:
        try:
            told = shown()
        except Exception as error:  # whatever MLflow raises
            raise ValueError(f"source=mlflow: no runs can be had from there: {reason(error)}") from error
        return _of_mlflow(told, sweeps, study, multirun)
    raise ValueError(f"source={source}: give records or mlflow.")


def together(sweeps: Sequence[Sweep], folder: Path) -> Sweep:
    """Several sweeps as one, in the folder that holds them: their runs are counted through."""
    if len(sweeps) == 1:
        return sweeps[0]
    rows = _each_once([row for sweep in sweeps for row in sweep.runs])
    unreadable = {f"{sweep.folder.name}/{name}": why for sweep in sweeps for name, why in sweep.unreadable.items()}
    return Sweep(folder, [replace(row, number=number) for number, row in enumerate(rows)], unreadable)


def _each_once(rows: Sequence[Run]) -> list[Run]:
    """The rows without duplicates of a run: a reused run is not a second observation."""
    owners = {row.name: row for row in sorted(rows, key=lambda row: not row.reused)}
    return [row for row in rows if owners[row.name] is row]


def linked(sweep: Sweep, links: Mapping[str, str]) -> Sweep:
    """A sweep whose rows know the addresses of their pages: `sweep/number` of a run -> the address."""
    return replace(sweep, runs=[replace(row, link=links.get(row.name, row.link)) for row in sweep.runs])


def of_shown(run: Shown) -> Run:
    """A run's row from what MLflow shows of it, as its record's would be; ValueError for one without its facts."""
    told = run["facts"]
    if told is None:
        raise ValueError("it does not hold the facts of its record: show that again by python src/publish.py")
    folder = Path(run["tags"]["epochmeter.folder"])
    metrics = {name: value for name, value in run["metrics"].items() if not name.startswith(CURVES)}
    there = folder if folder.exists() else None
    return make_run(told, metrics, run["status"] == FINISHED, folder=there, link=run["link"])


def _of_records(sweeps: Sequence[str], study: str | None, multirun: Path) -> Sweep:
    folders = _folders(sweeps, study, multirun)
    read_ones = [_of_study(read(folder), study) for folder in folders]
    return together([sweep for sweep in read_ones if sweep.runs or sweep.unreadable], multirun)


def _folders(sweeps: Sequence[str], study: str | None, multirun: Path) -> list[Path]:
    """The folders that are asked for; ValueError where there is none."""
    if sweeps:
        folders = list(dict.fromkeys(folder for sweep in sweeps for folder in _named(sweep, multirun)))
    elif study is None:
        folders = [folder for folder in [newest(multirun)] if folder]
    else:
        folders = _sweeps(multirun)
    if not folders:
        raise ValueError(f"There are no runs yet. Run first: {FIRST}")
    if study is None:
        return folders
    taken = {folder: _studies(folder) for folder in folders}
    took = [folder for folder, studies in taken.items() if study in studies]
    if not took:
        known = dict.fromkeys(name for studies in taken.values() for name in studies)
        other = f"There are runs of: {', '.join(known)}." if known else "There are runs of none."
        raise ValueError(f"study={study}: no run took it. {other} Run: python src/train.py -m experiment={study}")
    return took


def _named(sweep: str, multirun: Path) -> list[Path]:
    """The folders of a sweep's name, of a pattern of names, or of a path; ValueError where there are no runs."""
    for folder in (multirun / sweep, Path(sweep)):
        if holds_runs(folder):
            return [folder.absolute()]
    matching = _sweeps(multirun, sweep)
    if matching:
        return matching
    last = newest(multirun)
    other = f"The last one that has is {last.name}." if last else "None has: run python src/train.py first."
    raise ValueError(f"sweep={sweep}: no runs there: no job.json in it or in its numbered folders. {other}")


def _sweeps(multirun: Path, pattern: str = "*") -> list[Path]:
    """The folders of sweeps whose names fit a pattern, by name; no other is looked into."""
    named = (folder for folder in multirun.iterdir() if fnmatchcase(folder.name, pattern)) if multirun.is_dir() else ()
    return sorted(folder for folder in named if holds_runs(folder))


def _studies(folder: Path) -> list[str]:
    """What studies the runs of a sweep's folder took, as their `experiment=`."""
    took = []
    for run in run_folders(folder):
        try:
            told = read_reference(run) or read_json(run / "job.json")["run"]
            took.append(override_values(told["overrides"]).get("experiment"))
        except BROKEN:
            continue
    return [name for name in dict.fromkeys(took) if name]


def _of_study(sweep: Sweep, study: str | None) -> Sweep:
    if study is None:
        return sweep
    return replace(sweep, runs=[row for row in sweep.runs if row.experiment == study])


def _of_mlflow(shown: Sequence[Shown], sweeps: Sequence[str], study: str | None, multirun: Path) -> Sweep:
    by_sweep: dict[str, list[tuple[Shown, int | None]]] = {}
    for run in shown:
        if run["sweep_id"]:
            by_sweep.setdefault(run["sweep_id"], []).append((run, None))
        for name, number in run["reused_as"]:
            by_sweep.setdefault(name, []).append((run, number))
    if not by_sweep:
        raise ValueError(f"MLflow shows no runs yet. Run first: {FIRST}")
    names = _matching(sweeps, by_sweep, "MLflow shows no run of it") if sweeps else sorted(by_sweep)
    if not sweeps and study is None:
        names = sorted(names, key=sort_key)[-1:]
    told = [_of_study(_sweep_of(by_sweep[name], multirun / name), study) for name in names]
    kept = [sweep for sweep in told if sweep.runs or sweep.unreadable]
    if not kept:
        raise ValueError(f"study={study}: MLflow shows no run that took it.")
    return together(kept, multirun)


def _sweep_of(shown: Iterable[tuple[Shown, int | None]], folder: Path) -> Sweep:
    """The rows of a sweep's runs; a number is that of a run which the sweep reuses."""
    rows, unreadable = [], {}
    for run, number in shown:
        try:
            row = of_shown(run)
            rows.append(row if number is None else replace(row, number=number, sweep=folder.name, reused=row.name))
        except BROKEN as error:
            unreadable[_name(run)] = reason(error)
    return Sweep(folder, sorted(rows, key=lambda row: row.number), unreadable)


def _name(run: Shown) -> str:
    """What a run's folder is called, or else what MLflow calls it by."""
    return Path(run["tags"].get("epochmeter.folder", "")).name or str(run["run_id"])


def _matching(sweeps: Sequence[str], names: Iterable[str], none: str) -> list[str]:
    """The names that are asked for, by themselves or by a pattern; ValueError where one matches none."""
    known = sorted(names)
    for sweep in sweeps:
        if not any(fnmatchcase(name, sweep) for name in known):
            raise ValueError(f"sweep={sweep}: {none}. There are: {', '.join(known[-5:])}.")
    return [name for name in known if any(fnmatchcase(name, sweep) for sweep in sweeps)]
