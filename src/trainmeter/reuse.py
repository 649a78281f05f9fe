"""Reuse of completed runs: a sweep refers to a run of the same identity, whatever command measured it.

The folder of such a run holds `reused.json` in place of a record: which run it refers to, and what was typed for it.
The identity covers the configuration, the dataset, the host and its GPUs. It does not cover code, drivers and
libraries, nor the state of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from trainmeter.durable import read_json, write_json
from trainmeter.record import INTERVALS, Record, is_partial, steps_of
from trainmeter.resuming import is_all

REFERENCE = "reused.json"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a broken record or reference raises."""


class Run(NamedTuple):
    """A completed run, as the small file tells that is written when a run is completed."""

    finished: str
    identity: str
    folder: Path


class Pool:
    """The completed runs that one sweep may reuse, each once."""

    def __init__(self, sweep: Path) -> None:
        """Reads `whole.json` of every run next to the sweep and the references that the sweep has.

        Args:
            sweep: the sweep's folder, in the folder of all sweeps.
        """
        self._sweep = sweep
        self._runs: dict[str, list[Run]] = defaultdict(list)
        """By identity, and by the identity of the configuration's first repeat."""
        for whole in sweep.parent.glob("[!.]*/[0-9]*/whole.json"):
            if whole.parents[1] != sweep:
                self._add(whole)
        referred = (followed(path.parent) for path in sweep.glob(f"*/{REFERENCE}"))
        self._taken = {record.folder.resolve() for record in referred if record}

    def _add(self, whole: Path) -> None:
        try:
            told = read_json(whole)
            run = Run(told["finished"], told["identity"], whole.parent)
            for key in {run.identity, told.get("configuration", run.identity)}:
                self._runs[key].append(run)
        except UNREADABLE:
            pass

    def take(self, identity: str, configuration: str, repeat: int) -> Record | None:
        """The run to reuse for a repeat of a configuration; None where it is to be measured.

        That is a run of the same repeat, or else, for repeat k, one of at least k + 1 completed runs of the
        configuration.

        Args:
            identity: of the run.
            configuration: the identity of the first repeat of the same configuration.
            repeat: the number of the repeat, from 0.
        """
        runs = sorted({*self._runs.get(configuration, ()), *self._runs.get(identity, ())})
        usable = [run for run in runs if is_usable(Record(run.folder), run.identity)]
        free = [run for run in usable if run.folder.resolve() not in self._taken]
        same = [run for run in free if run.identity == identity]
        chosen = same or (free if len(usable) > repeat else [])
        if not chosen:
            return None
        self._taken.add(chosen[0].folder.resolve())
        return Record(chosen[0].folder)


@lru_cache(maxsize=1)
def pool(sweep: Path) -> Pool:
    """The pool of a sweep, read once per command: runs that are completed meanwhile are not seen."""
    return Pool(sweep)


def found(folder: Path, identity: str, configuration: str, repeat: int) -> Record | None:
    """The run that a run's folder refers to, if it still is of this configuration, or else one to refer to.

    Args:
        folder: the run's folder in its sweep.
        identity: of the run.
        configuration: the identity of the first repeat of the same configuration.
        repeat: the number of the repeat, from 0.
    """
    record = followed(folder)
    if record:
        whole = read_json(record.folder / "whole.json")
        if identity in whole.values() or configuration in whole.values():
            return record
    return pool(folder.parent).take(identity, configuration, repeat)


def is_usable(record: Record, identity: str) -> bool:
    """Whether a run can stand for another of the same identity: completed, no rehearsal, its record undamaged."""
    try:
        run, windows, summary = record.run(), record.windows(), record.summary()
        epochs = [window for window in windows if window["window"] == "epoch"]
        rows = (record.folder / "steps.bin").stat().st_size // (4 * len(INTERVALS))
        measured = [(window["window"], window["epoch"]) for window in windows]
        return (
            record.is_whole(identity)
            and run["identity"] == identity
            and not run["rehearsal"]
            and summary["state"] == "whole"
            and summary["metrics"]["total/epochs"] == sum(not is_partial(epoch) for epoch in epochs)
            and is_all(measured, len(epochs), record.job()["evaluate"])
            and rows >= steps_of(windows)
        )
    except UNREADABLE:
        return False


def refer(folder: Path, record: Record, overrides: Sequence[str]) -> None:
    """Has a run's folder refer to a completed run; what an earlier attempt left there is set aside.

    Args:
        folder: the run's folder in its sweep.
        record: the completed run.
        overrides: what was typed for the run that is not measured.
    """
    origin, told = record.folder.resolve(), reference(folder)
    if told and told["folder"] == str(origin):
        return
    own = Record(folder)
    with own.alone():
        own.set_aside()
    write_json(
        folder / REFERENCE,
        {
            "run": f"{origin.parent.name}/{origin.name}",
            "folder": str(origin),
            "record_id": record.run()["record_id"],
            "overrides": list(overrides),
            "referred": datetime.now().astimezone().isoformat(timespec="seconds"),
        },
    )


def reference(folder: Path) -> dict[str, Any] | None:
    """What `reused.json` of a run's folder tells; None for a run with a record of its own."""
    if (folder / "job.json").exists():
        return None
    try:
        told: dict[str, Any] = read_json(folder / REFERENCE)
    except (OSError, ValueError):
        return None
    return told


def followed(folder: Path) -> Record | None:
    """The completed run that a run's folder refers to; None where it refers to none, or to one that is gone.

    It is looked for in the folder of all sweeps first, which may have been copied or moved, then where it was.
    """
    told = reference(folder)
    if told is None:
        return None
    try:
        for origin in (folder.absolute().parents[1] / told["run"], Path(told["folder"])):
            record = Record(origin)
            if record.is_whole() and record.run()["record_id"] == told["record_id"]:
                return record
    except UNREADABLE:
        pass
    return None


def is_run(folder: Path) -> bool:
    """Whether a folder holds a record or refers to one."""
    return (folder / "job.json").exists() or (folder / REFERENCE).exists()


def record_of(folder: Path) -> Record:
    """The record of a run: its own, or that of the run it refers to."""
    return followed(folder) or Record(folder)
