"""Shows records in MLflow: those named, or all of multirun/. What is shown already is left as it is.

    python src/publish.py                                   repairs whatever is missing
    python src/publish.py multirun/2026-11-20_12-00-00-1a2b  a sweep, or one run of it
    python src/publish.py --tensorboard                      and their event files (make tensorboard)

The record is the truth and MLflow its index: a database that was lost is rebuilt, and a run that was deleted in
MLflow comes back as long as its folder is there. Exits with 1 if any record could not be shown.
"""

import argparse
import sys
from pathlib import Path

from trainmeter import environment

if environment.lack():
    sys.exit(environment.lack())

from trainmeter.job import ROOT
from trainmeter.record import Record
from trainmeter.tracking import tensorboard, views
from trainmeter.tracking.publish import publish, reap, records_below
from trainmeter.tracking.publisher import reason
from trainmeter.tracking.store import EXPERIMENT, Store, open_store, tracking_uri


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a run, a sweep, or several")
    parser.add_argument("--experiment", default=EXPERIMENT, help="the experiment in MLflow (%(default)s)")
    parser.add_argument("--tensorboard", action="store_true", help="write their event files for TensorBoard as well")
    asked = parser.parse_args(arguments)
    try:
        tensorboard.check({"tensorboard": asked.tensorboard})
    except ValueError as error:
        parser.error(str(error))
    folders = asked.folders or [ROOT / "multirun"]
    records = [record for folder in folders for record in records_below(folder)]
    empty = [folder for folder in asked.folders if not records_below(folder)]
    for folder in empty:
        print(f"{folder}: no record there: no job.json in it or below it", file=sys.stderr)
    try:
        store = open_store(asked.experiment)
    except Exception as error:
        print(f"MLflow at {tracking_uri()} is not there: {reason(error)}", file=sys.stderr)
        return 1
    shown = [show(record, store, asked.tensorboard) for record in records]
    reap(store)
    views.save(store)
    # The view compares what is whole: of other runs alone it would be an empty page.
    compared = f": {views.link(store)}" if any(record.is_whole() for record in records) else ""
    print(f"{sum(shown)} of {len(records)} records shown{compared}")
    return 0 if all(shown) and not empty else 1


def show(record: Record, store: Store, events: bool) -> bool:
    """Publishes a record and says so on a line; one that fails keeps no other from being shown."""
    try:
        if events:
            tensorboard.write(record)
        print(f"{record.folder}: {views.run_link(publish(record, store))}")
    except Exception as error:
        print(f"{record.folder}: not shown: {reason(error)}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
