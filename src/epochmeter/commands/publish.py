"""Publish runs to MLflow: the named ones, or all in multirun/. Published runs are left unchanged.

    python src/publish.py                                   publishes all that is missing
    python src/publish.py multirun/2026-11-20_12-00-00-1a2b  a sweep, or one run of it
    python src/publish.py --uri http://board:5000            to that server instead of the configured one

MLflow is an index of the run folders: this rebuilds a lost database and restores runs that were deleted in MLflow.
A run on a node of a cluster is published by the command that submitted it, unless --uri is given. Exit code: 1 if any
run could not be published.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.config.installation import ROOT, with_own_commands
from epochmeter.results.run_status import RUNNING, recorded_status, status_of
from epochmeter.results.sweep_files import is_remote
from epochmeter.run.finish import close_orphans
from epochmeter.shared.record import Record
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import EXPERIMENT, LONG_TIMEOUT_S, Destination, destination_of, open_store, tracking_uri
from epochmeter.tracking.publish import close_dead_runs, publish, records_below
from epochmeter.tracking.publisher import error_reason


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=with_own_commands(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a run, a sweep, or several")
    parser.add_argument("--uri", help="the server or the database (default: each run's own)")
    options = parser.parse_args(arguments)
    close_orphans(ROOT / "multirun", print)
    records_by_folder = {folder: records_below(folder) for folder in options.folders or [ROOT / "multirun"]}
    empty = [folder for folder in options.folders if not records_by_folder[folder]]
    for folder in empty:
        print(f"error: {folder} contains no runs: there is no job.json in it or below it", file=sys.stderr)
        print("  hint: name a run or a sweep in multirun/, or nothing for all", file=sys.stderr)
    records = [record for records in records_by_folder.values() for record in records]
    ready = [record for record in records if options.uri or not is_pending_on_cluster(record)]
    if len(ready) < len(records):
        print(f"skipped {len(records) - len(ready)} submitted runs, which the submitting command publishes")
    by_destination: dict[Destination, list[Record]] = {}
    for record in ready:
        own = destination_of_record(record)
        by_destination.setdefault(Destination(own.experiment, options.uri or own.uri), []).append(record)
    published = [publish_records(records, where) for where, records in by_destination.items()]
    return 0 if all(published) and not empty else 1


def destination_of_record(record: Record) -> Destination:
    """Return the configured destination of a record; the default one if it has none or cannot be read."""
    with suppress(*queue.READ_ERRORS):
        if destination := destination_of(record.job()["tracking"]):
            return destination
    return Destination(EXPERIMENT, tracking_uri())


def is_pending_on_cluster(record: Record) -> bool:
    """Return whether the submitting command has yet to collect a run; none collects an attempt without a summary."""
    with suppress(*queue.READ_ERRORS):
        multirun = queue.multirun_of(record)
        sweep, number, *attempt = record.folder.absolute().relative_to(multirun).parts
        if is_remote(multirun / sweep) and destination_of(record.job()["tracking"]) is None:
            return not (recorded_status(record) if attempt else SubmissionLog(multirun / sweep)[int(number)].reported)
    return False


def publish_records(records: Sequence[Record], destination: Destination) -> bool:
    """Publish records to one destination; return whether all were published."""
    count = 0
    try:
        store = open_store(*destination, timeout_s=LONG_TIMEOUT_S)
        for record in records:
            try:
                print(f"{record.folder}: {views.run_link(publish(record, store))}")
            except Exception as error:
                print(f"error: cannot publish {record.folder}: {error_reason(error)}", file=sys.stderr)
                continue
            count += 1
            if status_of(record) != RUNNING and destination == destination_of_record(record):
                queue.dequeue(record)
        close_dead_runs(store)
        views.save_views(store)
        # The comparison shows completed runs only.
        compared = f": {views.results_link(store)}" if any(record.is_completed() for record in records) else ""
        print(f"{count} of {len(records)} runs published{compared}")
    except Exception as error:
        print(f"error: MLflow at {destination} failed: {error_reason(error)}", file=sys.stderr)
        return False
    return count == len(records)
