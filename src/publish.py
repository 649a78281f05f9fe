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

if interpreter.missing_requirements():
    sys.exit(interpreter.missing_requirements())

from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.config.job import ROOT
from epochmeter.results.run_status import RUNNING, recorded_status, status_of
from epochmeter.run.finish import close_orphans
from epochmeter.shared.record import Record
from epochmeter.sweep.sweep_folder import is_remote
from epochmeter.tracking import queue, tensorboard, views
from epochmeter.tracking.client import (
    EXPERIMENT,
    LONG_TIMEOUT_S,
    Destination,
    Store,
    destination_of,
    open_store,
    tracking_uri,
)
from epochmeter.tracking.publish import close_dead_runs, publish, records_below
from epochmeter.tracking.publisher import error_reason


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a run, a sweep, or several")
    parser.add_argument("--uri", help="the server or the database (default: each run's own)")
    parser.add_argument("--experiment", help="the experiment in MLflow (default: each run's own)")
    parser.add_argument("--tensorboard", action="store_true", help="write their event files for TensorBoard as well")
    asked = parser.parse_args(arguments)
    try:
        tensorboard.check_installed({"tensorboard": asked.tensorboard})
    except ValueError as error:
        parser.error(str(error))
    close_orphans(ROOT / "multirun", print)
    folders = asked.folders or [ROOT / "multirun"]
    records = [record for folder in folders for record in records_below(folder)]
    empty = [folder for folder in asked.folders if not records_below(folder)]
    for folder in empty:
        print(f"error: {folder} contains no runs: there is no job.json in it or below it", file=sys.stderr)
        print("  hint: name a run or a sweep in multirun/, or nothing for all", file=sys.stderr)
    left = [] if asked.uri else [record for record in records if is_pending_on_cluster(record)]
    for sweep in dict.fromkeys(record.folder.parent for record in left):
        count = sum(record.folder.parent == sweep for record in left)
        print(f"{sweep}: skipped {count} submitted runs, which the submitting command publishes")
    by_place: dict[Destination, list[Record]] = {}
    for record in [record for record in records if record not in left]:
        own = destination_of_record(record)
        where = Destination(asked.experiment or own.experiment, asked.uri or own.uri)
        by_place.setdefault(where, []).append(record)
    shown = [publish_records(there, where, asked.tensorboard) for where, there in by_place.items()]
    return 0 if all(shown) and not empty else 1


def destination_of_record(record: Record) -> Destination:
    """Where a record is meant to be shown; the usual place where it was not meant to be, or cannot be read."""
    asked = None
    with suppress(*queue.READ_ERRORS):
        asked = destination_of(record.job()["tracking"])
    return asked or Destination(EXPERIMENT, tracking_uri())


def is_pending_on_cluster(record: Record) -> bool:
    """Whether a node makes the run, or made it, and who sent it has yet to tell how it ended, and to write into its
    record where it is shown.

    One that was set aside before it had an end is told of by nobody.
    """
    with suppress(*queue.READ_ERRORS):
        multirun = queue.multirun_of(record)
        sweep, number, *attempt = record.folder.absolute().relative_to(multirun).parts
        if is_remote(multirun / sweep) and destination_of(record.job()["tracking"]) is None:
            return not (recorded_status(record) if attempt else SubmissionLog(multirun / sweep)[int(number)].reported)
    return False


def publish_records(records: Sequence[Record], where: Destination, events: bool) -> bool:
    """Publishes the records to one place; whether all are shown there."""
    try:
        store = open_store(*where, timeout_s=LONG_TIMEOUT_S)
    except Exception as error:
        print(f"error: MLflow at {where} is not there: {error_reason(error)}", file=sys.stderr)
        return False
    shown = [publish_record(record, store, where, events) for record in records]
    ended = end_dead_runs(store, where)
    views.save_views(store)
    # The view compares what is completed: of other runs alone it would be an empty page.
    compared = f": {views.results_link(store)}" if any(record.is_completed() for record in records) else ""
    print(f"{sum(shown)} of {len(records)} runs published{compared}")
    return all(shown) and ended


def end_dead_runs(store: Store, where: Destination) -> bool:
    """Ends the runs whose process is gone; whether the server answered to that."""
    try:
        close_dead_runs(store)
    except Exception as error:
        print(f"error: cannot read the states of runs from MLflow at {where}: {error_reason(error)}", file=sys.stderr)
        return False
    return True


def publish_record(record: Record, store: Store, where: Destination, events: bool) -> bool:
    """Publishes a record and says so on a line; one that fails keeps no other from being shown."""
    try:
        if events:
            tensorboard.write_events(record)
        print(f"{record.folder}: {views.run_link(publish(record, store))}")
    except Exception as error:
        print(f"error: cannot publish {record.folder}: {error_reason(error)}", file=sys.stderr)
        return False
    if status_of(record) != RUNNING and where == destination_of_record(record):  # elsewhere it is yet to be shown
        queue.dequeue(record)
    return True


if __name__ == "__main__":
    sys.exit(main())
