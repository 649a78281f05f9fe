"""Publish runs to MLflow: the named ones, or all in multirun/. Published runs are left unchanged.

    python src/publish.py                                   publishes all that is missing
    python src/publish.py multirun/2026-11-20_12-00-00-1a2b  a sweep, or one run of it
    python src/publish.py --uri http://board:5000            to that server instead of the configured one
    python src/publish.py --tensorboard                      with event files for TensorBoard (make tensorboard)

MLflow is an index of the run folders: this rebuilds a lost database and restores runs that were deleted in MLflow.
A run on a node of a cluster is published by the command that submitted it, unless --uri is given. Exit code: 1 if any
run could not be published.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.config import interpreter

if interpreter.lack():
    sys.exit(interpreter.lack())

from epochmeter.cluster.submissions import Ledger
from epochmeter.config.job import ROOT
from epochmeter.results.run_status import RUNNING, said, state
from epochmeter.run.finish import close_dead
from epochmeter.shared.record import Record
from epochmeter.sweep.sweep_folder import is_sent
from epochmeter.tracking import queue, tensorboard, views
from epochmeter.tracking.client import EXPERIMENT, PATIENT_S, Place, Store, open_store, place, tracking_uri
from epochmeter.tracking.publish import publish, reap, records_below
from epochmeter.tracking.publisher import reason


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a run, a sweep, or several")
    parser.add_argument("--uri", help="the server or the database (default: each run's own)")
    parser.add_argument("--experiment", help="the experiment in MLflow (default: each run's own)")
    parser.add_argument("--tensorboard", action="store_true", help="write their event files for TensorBoard as well")
    asked = parser.parse_args(arguments)
    try:
        tensorboard.check({"tensorboard": asked.tensorboard})
    except ValueError as error:
        parser.error(str(error))
    close_dead(ROOT / "multirun", print)
    folders = asked.folders or [ROOT / "multirun"]
    records = [record for folder in folders for record in records_below(folder)]
    empty = [folder for folder in asked.folders if not records_below(folder)]
    for folder in empty:
        print(f"error: {folder} contains no runs: there is no job.json in it or below it", file=sys.stderr)
        print("  hint: name a run or a sweep in multirun/, or nothing for all", file=sys.stderr)
    left = [] if asked.uri else [record for record in records if is_awaited(record)]
    for sweep in dict.fromkeys(record.folder.parent for record in left):
        count = sum(record.folder.parent == sweep for record in left)
        print(f"{sweep}: skipped {count} submitted runs, which the submitting command publishes")
    by_place: dict[Place, list[Record]] = {}
    for record in [record for record in records if record not in left]:
        own = place_of(record)
        where = Place(asked.experiment or own.experiment, asked.uri or own.uri)
        by_place.setdefault(where, []).append(record)
    shown = [show(there, where, asked.tensorboard) for where, there in by_place.items()]
    return 0 if all(shown) and not empty else 1


def place_of(record: Record) -> Place:
    """Where a record is meant to be shown; the usual place where it was not meant to be, or cannot be read."""
    asked = None
    with suppress(*queue.UNREADABLE):
        asked = place(record.job()["tracking"])
    return asked or Place(EXPERIMENT, tracking_uri())


def is_awaited(record: Record) -> bool:
    """Whether a node makes the run, or made it, and who sent it has yet to tell how it ended, and to write into its
    record where it is shown.

    One that was set aside before it had an end is told of by nobody.
    """
    with suppress(*queue.UNREADABLE):
        multirun = queue.multirun_of(record)
        sweep, number, *attempt = record.folder.absolute().relative_to(multirun).parts
        if is_sent(multirun / sweep) and place(record.job()["tracking"]) is None:
            return not (said(record) if attempt else Ledger(multirun / sweep)[int(number)].get("told"))
    return False


def show(records: Sequence[Record], where: Place, events: bool) -> bool:
    """Publishes the records to one place; whether all are shown there."""
    try:
        store = open_store(*where, patience_s=PATIENT_S)
    except Exception as error:
        print(f"error: MLflow at {where} is not there: {reason(error)}", file=sys.stderr)
        return False
    shown = [show_one(record, store, where, events) for record in records]
    ended = end_dead(store, where)
    views.save(store)
    # The view compares what is whole: of other runs alone it would be an empty page.
    compared = f": {views.link(store)}" if any(record.is_whole() for record in records) else ""
    print(f"{sum(shown)} of {len(records)} runs published{compared}")
    return all(shown) and ended


def end_dead(store: Store, where: Place) -> bool:
    """Ends the runs whose process is gone; whether the server answered to that."""
    try:
        reap(store)
    except Exception as error:
        print(f"error: cannot read the states of runs from MLflow at {where}: {reason(error)}", file=sys.stderr)
        return False
    return True


def show_one(record: Record, store: Store, where: Place, events: bool) -> bool:
    """Publishes a record and says so on a line; one that fails keeps no other from being shown."""
    try:
        if events:
            tensorboard.write(record)
        print(f"{record.folder}: {views.run_link(publish(record, store))}")
    except Exception as error:
        print(f"error: cannot publish {record.folder}: {reason(error)}", file=sys.stderr)
        return False
    if state(record) != RUNNING and where == place_of(record):  # elsewhere it is yet to be shown
        queue.drop(record)
    return True


if __name__ == "__main__":
    sys.exit(main())
