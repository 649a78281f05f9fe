"""The records of a sweep as plain rows: what can be told from them, and what is left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmeter.record import Record

WHOLE = "whole"
TOO_SHORT = "no epoch after its warm-up: give more epochs"


@dataclass(frozen=True)
class Row:
    """A run: what was asked of it, what was measured, and why it is no result, if it is none."""

    number: int
    job: Mapping[str, Any]
    keys: Mapping[str, str]
    """What was typed for it: `batch` -> `64`."""
    metrics: Mapping[str, float]
    """`steady/`, `total/` and `model/` values of its summary; empty while it has none."""
    state: str
    """How it ended: whole, failed, killed; `unfinished` where it has not, or was cut off."""
    left_out: str | None = None
    energy_covers: str | None = None
    """What its energy covers, None where none was measured."""
    no_energy: str | None = None
    """Why there is none."""
    cores: int | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)
    epochs: Sequence[Mapping[str, float]] = ()
    """Metrics of each epoch, in order, warm-up included."""
    rehearsal: Sequence[str] = ()
    """In what it was one."""
    devices: int | None = None
    """How many trained; None where that was not written down."""
    samples: int | None = None
    """How many there are to train on."""

    def steady(self, name: str) -> float | None:
        """The mean over the measured epochs; None where it is not known."""
        return self.metrics.get(f"steady/{name}")


@dataclass(frozen=True)
class Sweep:
    """All rows of a folder, in the order of their numbers, and the runs whose records cannot be read."""

    folder: Path
    rows: Sequence[Row]
    unreadable: Mapping[str, str]
    """Name of the run's folder -> what is wrong with its record."""

    @property
    def results(self) -> list[Row]:
        return [row for row in self.rows if row.left_out is None]

    @property
    def ended(self) -> list[Row]:
        """Results, and what would be one had it had an epoch after its warm-up: a target may be reached before."""
        return [row for row in self.rows if row.state == WHOLE and not row.rehearsal and _steady_or_short(row)]

    @property
    def rehearsed(self) -> list[Row]:
        """Rehearsals that went to their end: no results of what was asked, but what there is where there are none."""
        return [row for row in self.rows if row.state == WHOLE and row.rehearsal and row.metrics]

    def left_out(self, told: Container[int] = ()) -> Counter[str]:
        """How many runs are left out, by the reason; those of some numbers were told of nevertheless."""
        known = [row.left_out for row in self.rows if row.left_out and row.number not in told]
        return Counter([*known, *self.unreadable.values()])

    def varied(self) -> list[str]:
        """The keys that were typed and are not the same in all rows."""
        keys = dict.fromkeys(key for row in self.rows for key in row.keys)
        return [key for key in keys if len({row.keys.get(key) for row in self.rows}) > 1]


def read(folder: Path) -> Sweep:
    """The runs of a sweep's folder, or the one run that the folder is; a broken record is named, never fatal."""
    rows, unreadable = [], {}
    for run in run_folders(folder):
        try:
            rows.append(row(run))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            unreadable[run.name] = f"its record cannot be read: {_reason(error)}"
    return Sweep(folder, rows, unreadable)


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
    """A run's row; raises what reading a broken record raises."""
    record = Record(folder)
    job, run, summary = record.job(), record.run(), record.summary()
    energy = run.get("energy") or {}
    metrics = dict(summary["metrics"]) if summary else {}
    state = summary["state"] if summary else "unfinished"
    measured = "steady/energy_j" in metrics or "total/energy_j" in metrics
    return Row(
        number=int(run["number"]),
        job=job,
        keys=dict(_pair(override) for override in run["overrides"]),
        metrics=metrics,
        state=state,
        left_out=_left_out(record, run, state, metrics),
        energy_covers=energy.get("covers") if measured else None,
        no_energy=None if measured else energy.get("reason") or "no energy was measured",
        cores=_cores(record),
        storage=run.get("storage") or {},
        epochs=_epochs(record),
        rehearsal=run["rehearsal"],
        devices=_devices(job, run),
        samples=((run.get("dataset") or {}).get("splits") or {}).get("train"),
    )


def _left_out(record: Record, run: Mapping[str, Any], state: str, metrics: Mapping[str, float]) -> str | None:
    if state != WHOLE or not record.is_whole(run["identity"]):
        return f"not whole ({state})"
    if run["rehearsal"]:
        return f"a rehearsal ({'; '.join(run['rehearsal'])})"
    if "steady/e2e_s" not in metrics:
        return TOO_SHORT
    return None


def _steady_or_short(row: Row) -> bool:
    return row.left_out in (None, TOO_SHORT)


def _devices(job: Mapping[str, Any], run: Mapping[str, Any]) -> int | None:
    """How many devices trained: what the worker told of its ranks or its GPUs, or else what was asked for."""
    told = run.get("training") or {}
    if "ranks" in told:
        return int(told["ranks"])
    if "gpus" in told:
        return len(told["gpus"]) or 1
    asked = (job.get("strategy") or {}).get("ranks")
    return None if asked is None else int(asked)


def _epochs(record: Record) -> list[Mapping[str, float]]:
    """Its whole epochs; none where their lines cannot be read, as the summary still can."""
    try:
        epochs = (window for window in record.windows() if window["window"] == "epoch")
        return [epoch["metrics"] for epoch in epochs if not (epoch.get("partial") or epoch.get("warmup"))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _cores(record: Record) -> int | None:
    """Cores of the host that it ran on; None where that was not written down."""
    try:
        return int(record.host()["cpu"]["cores"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
