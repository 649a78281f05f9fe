"""Runs as data: typed, and as pandas or polars frames of runs, epochs, steps and power samples."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from epochmeter.config.validation import flatten
from epochmeter.report.runs.load import has_runs, load_published, merge_sweeps, read
from epochmeter.report.runs.run import Run, cached_by_identity
from epochmeter.shared.record import INTERVALS, Record
from epochmeter.shared.units import NANOSECOND

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

FACTS = ("number", "sweep", "state", "excluded_because", "failure", "host", "experiment", "devices",
         "power_limited_devices", "cores", "samples", "energy_source", "energy_covers", "no_energy", "link",
         "reused")  # fmt: skip
"""Attributes of a run with one value each; column `run.sweep`."""
LISTS = ("added", "energy_domains", "rehearsal", "read_errors")
Columns = Mapping[str, Any]
"""Name -> values of the rows of one run; a single value is that of all rows."""


@dataclass(frozen=True)
class Frame:
    """A table that is read when it is converted: one row per run, epoch, step or power sample."""

    parts: Callable[[], Iterable[Columns]]

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a pandas frame; absent values are NaN or None."""
        import pandas as pd

        frames = [pd.DataFrame(part) for part in self.parts() if part]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    def to_polars(self) -> pl.DataFrame:
        """Return the table as a polars frame; ImportError if polars is not installed."""
        return _to_polars(self.to_pandas())


class Runs(Sequence[Run]):
    """Runs, and what they measured as tables.

    Attributes:
        unreadable: Name of each run whose record is damaged -> the error.
    """

    def __init__(self, runs: Sequence[Run], unreadable: Mapping[str, str]) -> None:
        self._runs = runs
        self.unreadable = unreadable

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Run | Runs:
        return Runs(self._runs[index], self.unreadable) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per run: attributes (`run.state`), configuration (`batch`), metrics (`steady/e2e_s`), host."""
        import pandas as pd

        frame = pd.DataFrame([run_columns(run) for run in self])
        return frame[sorted(frame.columns, key=column_order)]

    def to_polars(self) -> pl.DataFrame:
        """Return the same as a polars frame; ImportError if polars is not installed."""
        return _to_polars(self.to_pandas())

    @property
    def epochs(self) -> Frame:
        """One row per window: `run`, `window` (`epoch` or `val`), `epoch` from 0, `warmup`, and its metrics."""
        return Frame(lambda: map(_windows, self))

    @property
    def steps(self) -> Frame:
        """One row per step: `run`, `epoch`, `step` from 0 through all epochs, intervals in seconds, and `loss`."""
        return Frame(lambda: map(_steps, self))

    @property
    def power(self) -> Frame:
        """One row per power sample: `run`, `time_s` from the first sample on, and watts by domain (`total_w`)."""
        return Frame(lambda: map(_power, self))


def load_runs(
    source: str | Path | Iterable[str | Path] = (), *, experiment: str | None = None, uri: str | None = None
) -> Runs:
    """Load runs from their folders, also while a sweep is running, or the published runs of an MLflow experiment.

    Args:
        source: The folder of a sweep or of a run, a pattern of such folders, or several of them; by default all sweeps
            in `multirun`. Of an experiment, the names of sweeps or patterns of them; by default all.
        experiment: Name of an MLflow experiment. Its records are downloaded without steps and power samples.
        uri: MLflow's server or database; None: MLFLOW_TRACKING_URI or the project's database.

    Returns:
        The runs, and the errors of damaged records (`unreadable`).

    Raises:
        FileNotFoundError: A path or pattern matches no folder with runs.
        ValueError: MLflow is not available, or has no such run.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    if experiment is None:
        folders = dict.fromkeys(folder for source in sources or ["multirun/*"] for folder in _folders(source))
        loaded = merge_sweeps([read(folder) for folder in folders], Path())
    else:
        sweeps = [str(name) for name in sources or ["*"]]
        loaded = load_published(sweeps, None, Path(), {"experiment": experiment, "uri": uri})
    return Runs(loaded.runs, loaded.unreadable)


def run_columns(run: Run) -> dict[str, object]:
    """Return everything known of a run, except its epochs, by column; lists and mappings are JSON."""
    columns = {f"run.{name}": value for name in FACTS if (value := getattr(run, name)) not in (None, "")}
    columns |= {f"run.{name}": json.dumps([*value]) for name in LISTS if (value := getattr(run, name))}
    columns["run.overrides"] = json.dumps(run.keys)
    for key, value in {**({"run.storage": run.storage} if run.storage else {}), **run.job}.items():
        columns |= _leaves(value, key) if isinstance(value, dict | list) else {key: value}
    columns |= run.metrics
    return columns | {f"host.{name}": value for name, value in run.platform.items()}


@cached_by_identity
def _leaves(value: Any, key: str) -> dict[str, object]:
    """Return the columns of a group of keys, or of a list."""
    leaves = flatten({key: value})
    return {name: json.dumps(leaf) if isinstance(leaf, dict | list) else leaf for name, leaf in leaves}


def column_order(column: str) -> int:
    """Sort key: attributes of the run, then keys, metrics and the host."""
    if column.startswith("run."):
        return 0
    if column.startswith("host."):
        return 3
    return 2 if "/" in column.partition(".")[0] else 1


def _to_polars(frame: pd.DataFrame) -> pl.DataFrame:
    try:
        import polars as pl
    except ImportError as error:
        raise ImportError("polars is not installed: run `pip install polars`, or use to_pandas()") from error
    several_types = [name for name in frame.columns if frame[name].dropna().map(type).nunique() > 1]
    return pl.from_pandas(frame.astype(dict.fromkeys(several_types, "string")))  # a column of polars has one type


def _folders(source: str | Path) -> list[Path]:
    folders = [Path(path).absolute() for path in sorted(glob(str(source))) or [str(source)]]
    with_runs = [folder for folder in folders if has_runs(folder)]
    if not with_runs:
        raise FileNotFoundError(f"no runs in {source}: no job.json in it or in its numbered folders")
    return with_runs


def _windows(run: Run) -> Columns:
    windows = Record(run.folder).windows()
    names = dict.fromkeys(name for window in windows for name in window["metrics"])
    return {
        "run": [run.name] * len(windows),
        **{name: [window[name] for window in windows] for name in ("window", "epoch")},
        "warmup": [bool(window.get("warmup")) for window in windows],
        **{name: [window["metrics"].get(name) for window in windows] for name in names},
    }


def _steps(run: Run) -> Columns:
    record = Record(run.folder)
    values, losses = record.steps(), record.losses()
    windows = [window for window in record.windows() if window["window"] == "epoch"]
    epochs = [window["epoch"] for window in windows for _ in range(int(window["metrics"].get("epoch/steps", 0)))]
    count = min(len(epochs), len(values) // len(INTERVALS))
    intervals = {name: values[place :: len(INTERVALS)][:count] for place, name in enumerate(INTERVALS)}
    loss = {"loss": losses[:count]} if len(losses) >= count else {}
    return {"run": [run.name] * count, "epoch": epochs[:count], "step": range(count), **intervals, **loss}


def _power(run: Run) -> Columns:
    try:
        with open(Record(run.folder).folder / "power.csv", newline="") as file:
            header, *lines = csv.reader(file)
    except (OSError, ValueError):
        return {}
    rows = [line for line in lines if len(line) == len(header)]  # the last line of a running run may be truncated
    times_s = [(int(row[0]) - int(rows[0][0])) * NANOSECOND for row in rows]
    watts = {name: [float(row[place] or "nan") for row in rows] for place, name in enumerate(header) if place}
    return {"run": [run.name] * len(rows), "time_s": times_s, **watts}
