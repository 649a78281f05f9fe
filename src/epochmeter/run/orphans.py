"""The records of runs whose process has ended without writing a summary, as it was killed."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from epochmeter.config.schema import Job
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.run_info import read_run
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import FAILED, KILLED
from epochmeter.results.sweep_files import is_remote
from epochmeter.run.event_folder import left_event_folder
from epochmeter.run.moments import moments_with_end
from epochmeter.run.plan import read_clock
from epochmeter.run.record_end import write_summary
from epochmeter.run.recovery import recover_windows, running_processes
from epochmeter.shared.problem import Problem
from epochmeter.shared.process_identity import boot_id
from epochmeter.tracking import queue
from epochmeter.tracking.client import destination_of

ABORTED_MESSAGE = "epochmeter was killed, the machine stopped, or the disk was full before the run ended"
STILL_RUNS = "run {} is not closed yet: epochmeter was killed, but its script (process {}) still runs"


def close_orphans(multirun: Path, say: Callable[[str], None]) -> None:
    """Write the summaries of queued runs whose process, on this host, ended without writing one.

    The windows of a script that continued are added when it has ended.
    Runs of a cluster are closed by the command that submitted them. A run that cannot be read or written is skipped.
    """
    for record in queue.pending_runs(multirun):
        with suppress(*READ_ERRORS), record.locked():
            run_folder = RunFolder(record.folder)
            if is_remote(record.folder.parent) or run_folder.state not in (FAILED, KILLED) or run_folder.recorded_end:
                continue
            job, run = Job.from_dict(record.job()), read_run(record)
            name, events = record.folder.relative_to(multirun), left_event_folder(record, run.record_id)
            if events and (running := running_processes(events)):
                say(STILL_RUNS.format(name, running[0].pid))
                continue
            result = RunResult(run.number, run.overrides)
            result.state, result.failure = run_folder.state, Problem(ABORTED_MESSAGE, code="killed")
            if events:
                result.notes += recover_windows(record, job, run, events)
            else:
                run.moments = moments_with_end(record, run, read_clock() if run.boot_id == boot_id() else None)
            write_summary(record, job, run, result)
            if events:
                shutil.rmtree(events, ignore_errors=True)
            if destination_of(job.tracking.to_dict()) is None:
                queue.dequeue(record)
            say(f"run {name} is marked as {run_folder.state}: {ABORTED_MESSAGE}")
