"""Where the runs of a report come from: records in folders, MLflow, or the table that an earlier report left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trainmeter.record import read_json
from trainmeter.report import table
from trainmeter.report.records import BROKEN, finite, newest, read, reason, run_folders, typed
from trainmeter.report.rows import NOT_WHOLE, TOO_SHORT, WHOLE, Row, Sweep

RECORDS, MLFLOW = "records", "mlflow"
STATES = {"FINISHED": WHOLE, "FAILED": "failed", "KILLED": "killed"}
"""What MLflow calls the end of a run -> what its record does."""
FIRST = "python src/train.py -m experiment=stalls"
"""What to run where there is nothing to tell of."""
Shown = Mapping[str, Any]
"""A run as MLflow shows it: `run_id`, `sweep_id`, `params`, `metrics`, `tags`, `status`, `link`."""


def found(
    sweeps: Sequence[str],
    experiment: str | None,
    source: str,
    multirun: Path,
    shown: Callable[[], Sequence[Shown]],
) -> Sweep:
    """The runs of these sweeps (names, patterns of names, folders), or of the last one where none is named.

    Of an `experiment`, all runs that took it. `source` is `records`, `mlflow`, of which `shown` gives the runs, or a
    CSV file. Raises ValueError where there is no run, with what to run or to name.
    """
    if source == RECORDS:
        return _of_records(sweeps, experiment, multirun)
    if source == MLFLOW:
        try:
            told = shown()
        except Exception as error:  # whatever MLflow raises
            raise ValueError(f"source=mlflow: no runs can be had from there: {reason(error)}") from error
        return _of_mlflow(told, sweeps, experiment, multirun)
    return _of_table(Path(source), sweeps, experiment)


def together(sweeps: Sequence[Sweep], folder: Path) -> Sweep:
    """Several sweeps as one, in the folder that holds them: their runs are counted through."""
    if len(sweeps) == 1:
        return sweeps[0]
    rows = [row for sweep in sweeps for row in sweep.rows]
    unreadable = {f"{sweep.folder.name}/{name}": why for sweep in sweeps for name, why in sweep.unreadable.items()}
    return Sweep(folder, [replace(row, number=number) for number, row in enumerate(rows)], unreadable)


def linked(sweep: Sweep, links: Mapping[str, str]) -> Sweep:
    """A sweep whose rows know the addresses of their pages: `sweep/number` of a run -> the address."""
    return replace(sweep, rows=[replace(row, link=links.get(row.name, row.link)) for row in sweep.rows])


def of_shown(run: Shown) -> Row:
    """A run's row from what MLflow shows of it; raises KeyError, TypeError or ValueError for one that is not ours."""
    params, tags = run["params"], run["tags"]
    metrics, infinite = finite(run["metrics"])
    kept = {name: value for name, value in metrics.items() if not name.startswith(("epoch/", "val/", "rank_max/"))}
    state = STATES.get(run["status"], "unfinished")
    rehearsal = tags.get("trainmeter.rehearsal") == "true"
    measured = "steady/energy_j" in kept or "total/energy_j" in kept
    folder = Path(tags["trainmeter.folder"])
    job = nested(params)
    left_out = f"{NOT_WHOLE} ({state})" if state != WHOLE else None
    if not left_out and "steady/e2e_s" not in kept:
        left_out = TOO_SHORT
    return Row(
        number=int(folder.name),
        job=job,
        keys=params,
        metrics=kept,
        state=state,
        left_out=left_out,
        energy_covers=tags.get("trainmeter.energy_covers") if measured else None,
        no_energy=None if measured else tags.get("trainmeter.energy_reason") or "no energy was measured",
        rehearsal=[tags.get("trainmeter.not_applied") or "it is marked as one"] if rehearsal else [],
        devices=(job.get("strategy") or {}).get("ranks"),
        sweep=run["sweep_id"],
        folder=folder if folder.exists() else None,
        host=tags.get("trainmeter.host"),
        link=run["link"],
        experiment=params.get("experiment"),
        energy_source=tags.get("trainmeter.energy_source"),
        differences={
            name: tags[tag]
            for name, tag in {"host": "trainmeter.host", "git commit": "mlflow.source.git.commit"}.items()
            if tag in tags
        },
        flaws=[f"{name} is no finite number" for name in infinite],
    )


def nested(params: Mapping[str, str]) -> dict[str, Any]:
    """A job from the keys that one types: `optimizer.lr` -> `1e-3` is what `optimizer` holds as `lr`.

    What stands for a group, such as `optimizer` -> `sgd`, is told by the group's own name.
    """
    job: dict[str, Any] = {}
    for key in sorted(params, key=lambda key: key.count("."), reverse=True):
        *above, last = key.split(".")
        branch = job
        for part in above:
            branch = branch.setdefault(part, {})
        branch.setdefault(last, value_of(params[key]))
    return job


def value_of(text: str) -> Any:
    """What a text is as JSON, where it is that, as parameters are written."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _of_records(sweeps: Sequence[str], experiment: str | None, multirun: Path) -> Sweep:
    folders = _folders(sweeps, experiment, multirun)
    read_ones = [_of_experiment(read(folder), experiment) for folder in folders]
    return together([sweep for sweep in read_ones if sweep.rows or sweep.unreadable], multirun)


def _folders(sweeps: Sequence[str], experiment: str | None, multirun: Path) -> list[Path]:
    """The folders that are asked for; ValueError where there is none."""
    last = newest(multirun)
    if not sweeps and experiment is None:
        if last is None:
            raise ValueError(f"There are no runs yet. Run first: {FIRST}")
        return [last]
    there = sorted(folder for folder in multirun.iterdir() if run_folders(folder)) if multirun.is_dir() else []
    folders = (
        dict.fromkeys(folder for sweep in sweeps for folder in _named(sweep, multirun, there)) if sweeps else there
    )
    took = [folder for folder in folders if experiment is None or experiment in _experiments(folder)]
    if not took:
        known = dict.fromkeys(name for folder in folders for name in _experiments(folder))
        other = f"There are runs of: {', '.join(known)}." if known else "There are runs of none."
        raise ValueError(f"experiment={experiment}: no run took it. {other} Run: python src/train.py -m experiment=...")
    return took


def _named(sweep: str, multirun: Path, there: Iterable[Path]) -> list[Path]:
    """The folders of a sweep's name, of a pattern of names, or of a path; ValueError where there are no runs."""
    for folder in (multirun / sweep, Path(sweep)):
        if run_folders(folder):
            return [folder.absolute()]
    matching = [folder for folder in there if fnmatchcase(folder.name, sweep)]
    if matching:
        return matching
    last = newest(multirun)
    other = f"The last one that has is {last.name}." if last else "None has: run python src/train.py first."
    raise ValueError(f"sweep={sweep}: no runs there: no job.json in it or in its numbered folders. {other}")


def _experiments(folder: Path) -> list[str]:
    """What experiments the runs of a sweep's folder took."""
    took = []
    for run in run_folders(folder):
        try:
            took.append(typed(read_json(run / "job.json")["run"]["overrides"]).get("experiment"))
        except BROKEN:
            continue
    return [name for name in dict.fromkeys(took) if name]


def _of_experiment(sweep: Sweep, experiment: str | None) -> Sweep:
    if experiment is None:
        return sweep
    return replace(sweep, rows=[row for row in sweep.rows if row.experiment == experiment])


def _of_mlflow(shown: Sequence[Shown], sweeps: Sequence[str], experiment: str | None, multirun: Path) -> Sweep:
    by_sweep: dict[str, list[Shown]] = {}
    for run in shown:
        if run["sweep_id"]:
            by_sweep.setdefault(run["sweep_id"], []).append(run)
    if not by_sweep:
        raise ValueError(f"MLflow shows no runs yet. Run first: {FIRST}")
    names = _matching(sweeps, by_sweep, "MLflow shows no run of it") if sweeps else sorted(by_sweep)
    if not sweeps and experiment is None:
        names = names[-1:]
    told = [_of_experiment(_sweep_of(by_sweep[name], multirun / name), experiment) for name in names]
    kept = [sweep for sweep in told if sweep.rows or sweep.unreadable]
    if not kept:
        raise ValueError(f"experiment={experiment}: MLflow shows no run that took it.")
    return together(kept, multirun)


def _sweep_of(shown: Iterable[Shown], folder: Path) -> Sweep:
    """The rows of a sweep; keys that are not the same in all of them count as typed."""
    rows, unreadable = [], {}
    for run in shown:
        try:
            rows.append(of_shown(run))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            unreadable[str(run["run_id"])] = reason(error)
    keys = dict.fromkeys(key for row in rows for key in row.keys)
    typed_for = {key for key in keys if len({row.keys.get(key) for row in rows}) > 1}
    kept = [replace(row, keys={key: row.keys[key] for key in row.keys if key in typed_for}) for row in rows]
    return Sweep(folder, sorted(kept, key=lambda row: row.number), unreadable)


def _of_table(path: Path, sweeps: Sequence[str], experiment: str | None) -> Sweep:
    if not path.is_file():
        raise ValueError(f"source={path}: there is no such file. Give records, mlflow, or the report.csv of a report.")
    rows = table.read(path)
    if sweeps:
        names = _matching(sweeps, Counter(row.sweep for row in rows), f"{path} holds no run of it")
        rows = [row for row in rows if row.sweep in names]
    told = _of_experiment(Sweep(path.absolute().parent, rows, {}), experiment)
    if not told.rows:
        raise ValueError(f"source={path}: it holds no run{f' of experiment={experiment}' if experiment else ''}.")
    return told


def _matching(sweeps: Sequence[str], names: Iterable[str], none: str) -> list[str]:
    """The names that are asked for, by themselves or by a pattern; ValueError where one matches none."""
    known = sorted(names)
    for sweep in sweeps:
        if not any(fnmatchcase(name, sweep) for name in known):
            raise ValueError(f"sweep={sweep}: {none}. There are: {', '.join(known[-5:])}.")
    return [name for name in known if any(fnmatchcase(name, sweep) for sweep in sweeps)]
