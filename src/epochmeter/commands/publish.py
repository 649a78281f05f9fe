"""Publish runs to MLflow and other trackers: the named ones, or all in multirun/. Published runs are left unchanged.

    python src/publish.py                                   publishes all that is missing
    python src/publish.py multirun/2026-11-20_12-00-00-1a2b  a sweep, or one run of it
    python src/publish.py --uri http://board:5000            to that server instead of the configured one
    python src/publish.py --also wandb                       also to W&B, whatever their tracking.also= was
    python src/publish.py format=json                        with the result as one JSON document

MLflow is an index of the run folders: this rebuilds a lost database and restores runs that were deleted in MLflow.
The configured server is that of MLFLOW_TRACKING_URI or of a file in conf/tracking, else the project's database. A
server that only a record names is not contacted, as the record may be from someone else: --uri confirms it, or gives
another address for a server that is gone, which the next call without --uri then leaves out. A run on
a node of a cluster is published by the command that submitted it, unless --uri is given. Ended runs are also exported
to the trackers of their tracking.also= that lack them; an exporter of your own is used only if --also names it, as the
record may be from someone else. Exit code: 1 if any run could not be published.
"""

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from epochmeter.cluster.submissions import log_of
from epochmeter.config import json_output
from epochmeter.config.errors import format_error, refuse
from epochmeter.config.installation import ROOT, with_own_commands
from epochmeter.config.printable import printable
from epochmeter.config.rules import EXPORTER, EXPORTERS
from epochmeter.config.secrets import redact
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.run_status import COMPLETED, FAILED, KILLED, RUNNING
from epochmeter.results.sweep_files import is_remote
from epochmeter.run.orphans import close_orphans
from epochmeter.shared.problem import InputError, Problem, input_error
from epochmeter.shared.record import JOB_FILE, Record
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import (
    EXPERIMENT,
    LOCAL_URI,
    LONG_TIMEOUT_S,
    Destination,
    check_uri,
    configured_uris,
    destination_of,
    open_store,
    tracking_uri,
)
from epochmeter.tracking.export_process import LATE, Exported, check_exporters, export, refusal
from epochmeter.tracking.exporter import exporter_names
from epochmeter.tracking.publish import close_dead_runs, publish, records_below
from epochmeter.tracking.reasons import error_reason
from epochmeter.tracking.run_export import refused_files

FORMATS = ("format=text", "format=json")
ENDS = (COMPLETED, FAILED, KILLED)
MAX_SAME = 3  # runs that are named with the same problem
MAX_LATE = 3  # exports of successive runs to one tracker that do not end in time, before no others are tried


class Attempt(NamedTuple):
    """A run that was to be published: its address in MLflow, or why it could not be, and its exports."""

    folder: Path
    link: str | None = None
    problem: str | None = None
    exports: Sequence[Exported] = ()

    @property
    def is_made(self) -> bool:
        """Whether something was tried: not for a run that is published elsewhere and lacks no export."""
        return bool(self.link or self.problem or self.exports)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=with_own_commands(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="a run, a sweep, or several; format=json")
    parser.add_argument("--uri", help="the server or the database (default: the configured one)")
    parser.add_argument(
        "--also", metavar="TRACKER", action="append", default=[], help="a tracker, as in tracking.also="
    )
    options = parser.parse_args(arguments)
    options.folders = [folder for folder in options.folders if folder not in FORMATS]
    try:
        check_arguments(options.folders, options.uri, options.also)
    except InputError as error:
        refuse(error)
    close_orphans(ROOT / "multirun", print)
    named = [Path(folder) for folder in options.folders]
    records_by_folder = {folder: records_below(folder) for folder in named or [ROOT / "multirun"]}
    empty = [folder for folder in named if not records_by_folder[folder]]
    for folder in empty:
        problem = f"`{folder}` contains no runs: there is no {JOB_FILE} in it or below it"
        warn(input_error(problem, "name a run or a sweep in multirun/, or nothing for all"))
    records = [record for records in records_by_folder.values() for record in records]
    ready = [record for record in records if options.uri or not is_pending_on_cluster(record)]
    if len(ready) < len(records):
        print(f"skipped {len(records) - len(ready)} submitted runs, which the submitting command publishes")
    configured = {options.uri} if options.uri else configured_uris()
    by_destination: dict[Destination, list[Record]] = {}
    for record in ready:
        recorded = destination_of_record(record)
        by_destination.setdefault(Destination(recorded.experiment, options.uri or recorded.uri), []).append(record)
    attempts, are_complete = list[Attempt](), True
    for where, records in by_destination.items():
        if where.uri in configured:
            published, is_complete = publish_records(records, where)
            are_complete = are_complete and is_complete
        else:
            published = skip_published(records, where)
        attempts += published
    attempts = export_runs(attempts, options.also)
    json_output.set_result({"runs": [attempt_fields(attempt) for attempt in attempts if attempt.is_made]})
    has_failed = warn_of_exports(attempts) or any(attempt.problem for attempt in attempts)
    return 1 if empty or has_failed or not are_complete else 0


def attempt_fields(attempt: Attempt) -> dict[str, object]:
    """Return a run as the document of `format=json` has it, without credentials."""
    folder, problem = str(attempt.folder.absolute()), redact(attempt.problem or "") or None
    exports = {each.exporter: each.where for each in attempt.exports if each.problem is None}
    return {"folder": folder, "link": attempt.link, "problem": problem, "exports": exports}


def export_runs(attempts: Sequence[Attempt], also: Sequence[str]) -> list[Attempt]:
    """Export ended runs to the trackers that lack them, of their records and of `also`; return how that ended."""
    late = Counter[str]()  # tracker -> its exports in a row that did not end in time

    def export_run(record: Record, name: str, links: Mapping[str, str]) -> Exported:
        if late[name] == MAX_LATE:
            return Exported(name, problem=f"not tried, as the exports of {MAX_LATE} runs did not end in time")
        exported = export(record, name, links)
        late[name] = late[name] + 1 if exported.problem == LATE else 0
        if exported.problem is None:
            print(printable(f"{record.folder}: exported to {name}: {exported.where or 'done'}"))
        return exported

    ended = list[Attempt]()
    for attempt in attempts:
        record, links = Record(attempt.folder), {"MLflow": attempt.link} if attempt.link else {}
        exports = [export_run(record, name, links) for name in missing_exports(record, also)]
        ended.append(attempt._replace(exports=exports))
    return ended


def missing_exports(record: Record, also: Sequence[str]) -> list[str]:
    """Return the exporters of an ended run, and `also`, to which it is not exported; a record's own ones are named."""
    recorded: list[str] = []
    with suppress(*READ_ERRORS):
        run_folder = RunFolder(record.folder)
        if run_folder.state not in ENDS:
            return []
        recorded = exporter_names(run_folder.job["tracking"].get("also"))
    missing = [name for name in dict.fromkeys([*also, *recorded]) if not queue.is_exported(record, name)]
    for name in missing:
        if name not in (*also, *EXPORTERS):
            print(printable(f"{record.folder} is not exported to {name}; if this class is yours, add `--also {name}`"))
    return [name for name in missing if name in (*also, *EXPORTERS)]


def warn_of_exports(attempts: Sequence[Attempt]) -> bool:
    """Print once per reason why runs were not exported; return whether there are any."""
    failed = Counter((each.exporter, each.problem) for attempt in attempts for each in attempt.exports if each.problem)
    for (name, problem), count in failed.items():
        known = refusal(name)
        warn(
            Problem(
                f"{count} of {len(attempts)} runs are not exported to {name}: {problem}", known.hint if known else ""
            )
        )
    return bool(failed)


def check_arguments(folders: Sequence[str], uri: str | None, also: Sequence[str] = ()) -> None:
    """Refuse an empty folder, which would be the current one, and addresses and trackers that cannot be; InputError."""
    for name in also:
        if not EXPORTER.is_allowed(name):
            raise input_error(f"`--also {name}` is not a tracker", f"give {EXPORTER.allowed}")
    check_exporters({"also": also})
    if "" in folders:
        raise input_error("`''` is not a folder", "name a run or a sweep in multirun/, or nothing for all")
    if uri is not None:
        check_uri(uri, "--uri ")


def skip_published(records: Sequence[Record], destination: Destination) -> list[Attempt]:
    """Print why records are not published to a server that only they name; return them, as they may lack exports."""
    elsewhere = [Attempt(record.folder) for record in records if queue.is_published_elsewhere(record)]
    refused = [record for record in records if not queue.is_published_elsewhere(record)]
    if elsewhere:
        print(f"skipped {len(elsewhere)} runs, which are published elsewhere than at {destination}")
    if not refused:
        return elsewhere
    folder = refused[0].folder
    problem = f"{folder} names the server {destination}, which is not configured here"
    others = f", as do {len(refused) - 1} other runs" if len(refused) > 1 else ""
    command = shlex.join(["python", "src/publish.py", "--uri", str(destination), str(folder.parent)])
    hint = f"if it is yours: `{command}`; if it is gone, give another address"
    warn(input_error(problem + others, f"{hint}, such as `--uri {LOCAL_URI}`"))
    why = f"its record names the server {destination}, which is not configured here"
    return [*elsewhere, *(Attempt(record.folder, problem=why) for record in refused)]


def warn(error: Exception | Problem) -> None:
    print(format_error(error), file=sys.stderr)


def destination_of_record(record: Record) -> Destination:
    """Return the destination that a record names; the default one if it has none or cannot be read."""
    with suppress(*READ_ERRORS):
        if destination := destination_of(RunFolder(record.folder).job["tracking"]):
            return destination
    return Destination(EXPERIMENT, tracking_uri())


def is_pending_on_cluster(record: Record) -> bool:
    """Return whether the submitting command has yet to collect a run; none collects an attempt without a summary."""
    with suppress(*READ_ERRORS):
        multirun = queue.multirun_of(record)
        sweep, number, *attempt = record.folder.absolute().relative_to(multirun).parts
        run_folder = RunFolder(record.folder)
        if is_remote(multirun / sweep) and destination_of(run_folder.job["tracking"]) is None:
            return not (run_folder.recorded_end if attempt else log_of(multirun / sweep)[int(number)].reported)
    return False


def publish_records(records: Sequence[Record], destination: Destination) -> tuple[list[Attempt], bool]:
    """Publish records to one destination; return how that ended for each record, and whether for the whole.

    After all runs are published, their comparison may still fail.
    """
    attempts: dict[Path, Attempt] = {}
    failed = Counter[str]()  # problem -> its runs
    try:
        store = open_store(*destination, timeout_s=LONG_TIMEOUT_S)
        for record in records:
            try:
                link = views.run_link(publish(record, store))
                print(printable(f"{record.folder}: {link}"))
            except Exception as error:
                attempts[record.folder] = Attempt(record.folder, problem=error_reason(error))
                failed[error_reason(error)] += 1
                if failed[error_reason(error)] <= MAX_SAME:
                    warn(Problem(f"cannot publish {record.folder}: {error_reason(error)}"))
                continue
            attempts[record.folder] = Attempt(record.folder, link)
            for name, reason in refused_files(record.folder).items():
                print(printable(f"warning: {record.folder / name} is not published: {reason}"), file=sys.stderr)
            recorded, is_running = destination_of_record(record), RunFolder(record.folder).state == RUNNING
            if not is_running and destination == recorded:
                queue.dequeue(record)
            elif not is_running and recorded.uri not in configured_uris():
                queue.mark_published(record, str(destination))
        for reason, count in failed.items():
            if count > MAX_SAME:
                others = count - MAX_SAME
                warn(Problem(f"cannot publish {others} other run{'s' if others > 1 else ''}: {reason}"))
        close_dead_runs(store)
        views.save_views(store)
        # The comparison shows completed runs only.
        compared = f": {views.results_link(store)}" if any(record.is_completed() for record in records) else ""
        count = sum(attempt.problem is None for attempt in attempts.values())
        print(f"{count} of {len(records)} runs published{compared}")
    except InputError as error:
        warn(error)
        return _others_failed(records, attempts, str(error)), False
    except Exception as error:
        problem = f"MLflow at {destination} failed: {error_reason(error)}"
        warn(Problem(problem))
        return _others_failed(records, attempts, problem), False
    return [*attempts.values()], True


def _others_failed(records: Sequence[Record], attempts: Mapping[Path, Attempt], problem: str) -> list[Attempt]:
    """Return the attempts that were made, and those that could not be for this reason."""
    return [attempts.get(record.folder, Attempt(record.folder, problem=problem)) for record in records]
