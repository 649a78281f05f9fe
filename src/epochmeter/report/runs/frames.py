"""Runs as data: typed, and as pandas or polars frames of runs, epochs, steps and power samples."""

import io
import json
import warnings
from bisect import bisect_left
from collections import UserList
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, repeat
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmeter.report.runs.load import find_sweeps, measured_folders, read_run, read_sweeps
from epochmeter.report.runs.published import load_published
from epochmeter.report.runs.run import Run
from epochmeter.results.bottleneck import recorded_verdict
from epochmeter.results.run_folder import READ_ERRORS, RunFolder, error_text
from epochmeter.shared.record import INTERVALS, POWER, training_of
from epochmeter.shared.record_files import read_bytes
from epochmeter.shared.units import NANOSECOND

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

NO_FACTS = {"job", "keys", "metrics", "epochs", "storage", "platform", "folder", "mode_clocks", "fingerprint",
            "next_steps", "loaders"}  # fmt: skip
"""Attributes of a run without a column `run.NAME`."""
KEPT_RUNS = 1000  # largest number of runs that `load_runs` keeps in memory


class Frame:
    """A table that is read when it is converted: one row per run, epoch, step or power sample.

    Example:
        >>> import epochmeter
        >>> epochs = epochmeter.load_runs("multirun/*").epochs.to_pandas()
        >>> print(epochs["epoch/e2e_s"].mean())
        8.0
    """

    def __init__(self, parts: Callable[[], Iterable[Any]]) -> None:
        self._parts = parts  # reads rows, or values by column, of one run after the other

    def to_pandas(self) -> "pd.DataFrame":
        """Return the table as a pandas frame; absent values are NaN or None."""
        import pandas as pd

        frames = [pd.DataFrame(of_run) for of_run in self._parts()]
        filled = [frame for frame in frames if len(frame)]
        return pd.concat(filled or frames[:1] or [pd.DataFrame()], ignore_index=True)

    def to_polars(self) -> "pl.DataFrame":
        """Return the table as a polars frame; ImportError if polars is not installed."""
        try:
            import polars as pl
        except ImportError as error:
            raise ImportError("polars is not installed: run `pip install polars`, or use to_pandas()") from error
        frame = self.to_pandas()
        several_types = [name for name in frame.columns if frame[name].dropna().map(type).nunique() > 1]
        return pl.from_pandas(frame.astype(dict.fromkeys(several_types, "string")))  # a column of polars has one type


class Runs(UserList[Run], Frame):
    """Runs, their measurements as tables, and a table of the runs.

    Example:
        >>> import epochmeter
        >>> runs = epochmeter.load_runs("multirun/*")
        >>> table = runs.to_pandas()
        >>> completed = table[table["run.state"] == "completed"]
        >>> len(completed) == len([run for run in runs if run.state == "completed"])
        True

    Attributes:
        unreadable: Name of each run whose record is damaged -> the error; empty for a slice.
    """

    def __init__(self, runs: Sequence[Run], unreadable: Mapping[str, str] | None = None) -> None:
        super().__init__(runs)
        self.unreadable = unreadable or {}

    def __repr__(self) -> str:
        return f"<Runs: {len(self)}, and {len(self.unreadable)} unreadable>"

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per run as a pandas frame: attributes, configuration, metrics, host; absent is NaN or None."""
        import pandas as pd

        runs = iter(self)
        parts = []  # of some runs each, as dictionaries need much more memory than columns
        while rows := [run_columns(run) for run in islice(runs, KEPT_RUNS)]:
            parts.append(pd.DataFrame(rows))
        frame = pd.concat(parts, ignore_index=True) if len(parts) > 1 else [*parts, pd.DataFrame()][0]
        return frame[sorted(frame.columns, key=column_order)]

    @property
    def epochs(self) -> Frame:
        """One row per window.

        Columns: `run`, `window` (`epoch`, `val`), `epoch` and `training` from 0, `warmup`, metrics and `bottleneck`.

        Example:
            >>> len(epochmeter.load_runs("multirun/*").epochs.to_pandas())
            3
        """
        return Frame(lambda: _parts_of(self, _windows))

    @property
    def steps(self) -> Frame:
        """One row per step: `run`, `epoch`, `step` from 0 through all epochs, intervals in seconds, and `loss`.

        Example:
            >>> steps = epochmeter.load_runs("multirun/*").steps.to_pandas()
            >>> longest = steps.nlargest(5, "compute_s") if len(steps) else steps
        """
        return Frame(lambda: _parts_of(self, _steps))

    @property
    def power(self) -> Frame:
        """One row per power sample: `run`, `time_s` from the first sample on, and watts by domain (`total_w`).

        Example:
            >>> power = epochmeter.load_runs("multirun/*").power.to_pandas()
            >>> peak_w = power["total_w"].max() if len(power) else None
        """
        return Frame(lambda: _parts_of(self, _power))


class ManyRuns(Runs):
    """Runs that are read one by one, whenever they are needed, as their objects would fill the memory.

    Loops, tables, `runs[3]`, `runs[-1]` and `runs[:10]` read what they need. `len(runs)` reads each run that was not
    read before. None of them keeps a run. All other operations of a list read all runs, once, and keep them.

    A run whose record is found damaged is noted in `unreadable`, and is none of the runs from then on.
    """

    def __init__(self, folders: Sequence[Path], *, is_merged: bool) -> None:
        """Take the folders of runs of one or of several sweeps, as which they are numbered."""
        self._folders, self._is_merged = folders, is_merged
        self.unreadable: dict[str, str] = {}  # of the runs that were read so far
        self._places = [*range(len(folders))]  # places of the folders whose records are not known to be damaged
        self._known = 0  # how many of the first `_places` are known to be readable

    def __repr__(self) -> str:
        return f"<Runs: {len(self._folders)} folders>"

    @cached_property
    def data(self) -> list[Run]:  # type: ignore[override]  # an attribute of UserList
        """All runs, once an operation has needed them."""
        return [*self._read_each(self._places[:])]

    def __iter__(self) -> Iterator[Run]:
        return self._read_each(self._places[:]) if self._is_lazy else iter(self.data)

    def __reversed__(self) -> Iterator[Run]:
        return self._read_each(self._places[::-1]) if self._is_lazy else reversed(self.data)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __len__(self) -> int:
        if not self._is_lazy:
            return len(self.data)
        for _ in self._read_each(self._places[self._known :]):
            pass
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Runs(self._slice(place) if self._is_lazy else self.data[place])
        if not self._is_lazy:
            return self.data[place]
        run = self._run_at(index(place))
        if run is None:
            raise IndexError(f"there is no run {place}")
        return run

    # The following operations return `Runs`. Those of UserList would call this class with a list, and have its type.

    def copy(self) -> Any:
        """Return all runs as `Runs`."""
        return Runs(self.data)

    def __copy__(self) -> Any:
        return Runs(self.data, self.unreadable)

    def __add__(self, other: Iterable[Run]) -> Any:
        return self.copy() + other

    def __radd__(self, other: Iterable[Run]) -> Any:
        return other + self.copy()

    def __mul__(self, count: int) -> Any:
        return self.copy() * count

    __rmul__ = __mul__

    @property
    def _is_lazy(self) -> bool:
        return "data" not in vars(self)

    def _run_at(self, position: int) -> Run | None:
        """Return the run at a position, also from the end, as of a list; None if there is none."""
        if position < 0 and self._known < len(self._places):
            return next(islice(reversed(self), -1 - position, None), None)
        while -len(self._places) <= position < len(self._places):
            first = min(position, self._known)  # those before it first: a damaged one has no position
            run = self._read(self._places[first])
            if run and first == position:
                return run
        return None

    def _slice(self, bounds: slice) -> list[Run]:
        """Return some runs, if possible without reading others."""
        [][bounds]  # raises what a list raises
        start, stop, step = bounds.start or 0, bounds.stop, bounds.step or 1
        if start < 0 and stop is None and step == 1:
            return [*islice(reversed(self), -start)][::-1]
        if stop is None or min(start, stop, step) < 0:
            len(self)  # looks at all
        elif self._known < min(stop, len(self._places)):
            return [*islice(iter(self), start, stop, step)]
        return [*self._read_each(self._places[bounds])]

    def _read_each(self, places: Iterable[int]) -> Iterator[Run]:
        """Yield the runs at some places, without damaged ones."""
        return filter(None, map(self._read, places))

    def _read(self, place: int) -> Run | None:
        """Return the run in a folder; None if its record is damaged, which is noted."""
        run = read_run(self._folders[place], place if self._is_merged else None, self.unreadable)
        at = bisect_left(self._places, place)
        if self._places[at : at + 1] != [place]:  # found damaged since the loop over it began
            return run
        if run:
            self._known += at == self._known
        else:
            del self._places[at]
            self._known -= at < self._known
        return run


def load_runs(
    source: str | Path | Iterable[str | Path] = (), *, experiment: str | None = None, uri: str | None = None
) -> Runs:
    """Load runs from their folders, also while a sweep is running, or the published runs of an MLflow experiment.

    More than 1,000 runs are not kept in memory: each is read when it is needed, in each loop.

    Example:
        >>> import epochmeter
        >>> for run in epochmeter.load_runs("multirun/*"):
        ...     print(run.job["batch"], run.metrics.get("steady/e2e_s", "not measured"))
        16 8.0

    Args:
        source: The folder of a sweep, of sweeps or of a run, a pattern of such folders, or several of them; by default
            all sweeps in `multirun`. Of an experiment, the names of sweeps or patterns of them; by default all.
        experiment: Name of an MLflow experiment. Its records are downloaded without steps and power samples.
        uri: MLflow's server or database; None: MLFLOW_TRACKING_URI or the project's database.

    Raises:
        ValueError: A path or pattern matches no folder with runs, or MLflow is not available or has no such run.
    """
    sources = [source] if isinstance(source, str | Path) else list(source) or ["*"]
    if experiment is None:
        sweeps = find_sweeps(sources, Path("multirun"))
        folders = measured_folders(sweeps)
        if len(folders) > KEPT_RUNS:
            return ManyRuns(folders, is_merged=len(sweeps) > 1)
        sweep = read_sweeps(sweeps, Path("multirun"))
    else:
        sweep = load_published([str(name) for name in sources], Path("multirun"), experiment, uri)
    return Runs(sweep.runs, sweep.unreadable)


def run_columns(run: Run) -> dict[str, object]:
    """Return everything known of a run, except its epochs, by column; lists and mappings are JSON."""
    facts = {"number": run.number, "excluded_because": run.excluded_because, **vars(run)}
    columns: dict[str, object] = {}
    for name, value in facts.items():
        if (value or value == 0) and name not in NO_FACTS:
            columns[f"run.{name}"] = value if isinstance(value, str | int) else json.dumps(value)
    columns["run.overrides"] = json.dumps(run.keys)
    for key, value in {**({"run.storage": run.storage} if run.storage else {}), **run.job}.items():
        _add_leaves(columns, key, value)
    return {**columns, **run.metrics, **{f"host.{name}": value for name, value in run.platform.items()}}


def _add_leaves(columns: dict[str, object], key: str, value: Any) -> None:
    """Add the column of a key, or those of a group of keys; lists are JSON."""
    if isinstance(value, dict) and value:
        for name, nested in value.items():
            _add_leaves(columns, f"{key}.{name}", nested)
    else:
        columns[key] = json.dumps(value) if isinstance(value, dict | list) else value


def column_order(column: str) -> int:
    """Sort key: attributes of the run, then keys, metrics and the host."""
    if column.startswith("run."):
        return 0
    if column.startswith("host."):
        return 3
    return 2 if "/" in column.partition(".")[0] else 1


def _parts_of(runs: Iterable[Run], read: Callable[[Run], Any]) -> Iterator[Any]:
    """Yield a table of each run; a warning names the runs with a file that cannot be read."""
    for run in runs:
        try:
            yield read(run)
        except READ_ERRORS as error:
            _warn(run, error_text(error))


def _warn(run: Run, text: str) -> None:
    warnings.warn(f"{run.name}: {text}", stacklevel=4)


def _windows(run: Run) -> list[dict[str, object]]:
    warmup_epochs, folder = run.job.get("warmup_epochs", 0), RunFolder(run.record.folder)
    rows: list[dict[str, object]] = [
        {"run": run.name, "window": window["window"], "epoch": window["epoch"], "training": training_of(window),
         "warmup": bool(window.get("warmup")) or window["epoch"] < warmup_epochs,  # also after a resume
         **window["metrics"], **_verdict(window, run.medium)}
        for window in folder.windows
    ]  # fmt: skip
    for error in folder.errors:
        _warn(run, error)
    return rows


def _verdict(window: Mapping[str, Any], medium: str | None) -> dict[str, object]:
    """Return the bottleneck of an epoch, and the metrics of its stalls that an earlier version did not record."""
    if window["window"] != "epoch":
        return {}
    verdict = recorded_verdict(window, medium, "epoch")
    return {"bottleneck": verdict.bottleneck or None, **verdict.metrics}


def _steps(run: Run) -> dict[str, object]:
    record = run.record
    values, losses = record.steps(), record.losses()
    rows = len(values) // len(INTERVALS)
    windows = [window for window in RunFolder(record.folder).all_windows if window["window"] == "epoch"]
    steps = [(window["epoch"], int(window["metrics"].get("epoch/steps") or 0)) for window in windows]
    of_steps = chain.from_iterable(repeat(epoch, min(count, rows)) for epoch, count in steps)
    epochs = [*islice(of_steps, rows)]
    intervals = {name: values[place :: len(INTERVALS)][: len(epochs)] for place, name in enumerate(INTERVALS)}
    loss = {"loss": losses[: len(epochs)]} if len(losses) >= len(epochs) else {}
    return {"run": [run.name] * len(epochs), "epoch": epochs, "step": range(len(epochs)), **intervals, **loss}


def _power(run: Run) -> "pd.DataFrame":
    import pandas as pd

    try:
        text = read_bytes(run.record.folder / POWER).decode("utf-8")
        complete = text[: text.rfind("\n") + 1]  # the last line of a running run may be truncated
        samples = pd.read_csv(io.StringIO(complete), on_bad_lines="skip")
        times_ns = samples.pop("monotonic_ns")
    except (FileNotFoundError, ValueError, KeyError):
        return pd.DataFrame(columns=["run", "time_s", "total_w"])
    samples.insert(0, "run", run.name)
    samples.insert(1, "time_s", (times_ns - times_ns.min()) * NANOSECOND)
    return samples
