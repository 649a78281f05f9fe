"""The submitted jobs of a sweep: `slurm/jobs.json` in its folder, and `slurm/changes.jsonl` with their ends."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.config.identity import hash_value
from epochmeter.results.appended_file import AppendedFile
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.sweep_files import SUBMISSIONS_FILE
from epochmeter.shared.atomic_files import append_to, write_json
from epochmeter.shared.record import JOB_FILE, Record
from epochmeter.shared.record_files import parse_json, read_document
from epochmeter.shared.types import Document

CHANGES_FILE = "changes.jsonl"  # next to the file of all submissions


class Submission(NamedTuple):
    """The latest job of a run."""

    job: str = ""  # job ID; empty if the run was never submitted
    digest: str = ""  # digest of the submitted task
    previous_attempt: str = ""  # the attempt in the run's folder at submission, if any
    reported: bool = False  # whether the result was printed and published
    earlier: bool = False  # whether the run was completed before the present command
    state: str = ""  # state of the ended job, as Slurm gives it
    node: str = ""  # node of the ended job


class SubmissionLog:
    """The submissions of a sweep, by run number; changes are durable.

    The file of all submissions is written when jobs are submitted. What changes later, run by run, is appended to a
    second one, so that the cost of a change does not grow with the number of runs.
    """

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep
        self.folder = (sweep / SUBMISSIONS_FILE).parent  # also has the output of the jobs
        plain = re.sub(r"[^\w.-]", "_", sweep.name)
        # Name of the jobs in Slurm, without commas, which separate names. Other projects may have a sweep of this name.
        self.name = f"epochmeter-{plain}-{hash_value(str(sweep.resolve()))[:8]}"
        self._entries: dict[int, Submission] = {}  # as read so far
        self._version: tuple[int, int, int] | None = None  # of the file of all submissions
        self._changes = AppendedFile(self.folder / CHANGES_FILE)

    def __getitem__(self, number: int) -> Submission:
        return self._read().get(number, Submission())

    def refusal(self, number: int) -> Path:
        """Return the file with the problem of a run that its job has refused."""
        return self.folder / f"{number}_refused.json"

    def entries(self) -> dict[int, Submission]:
        """Return the submissions by number; `READ_ERRORS` if their file is damaged."""
        return {**self._read()}

    def write(self, submissions: Mapping[int, Submission]) -> None:
        """Add submissions, or replace those of the same runs."""
        entries = {**self._read(), **submissions}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(
            self.sweep / SUBMISSIONS_FILE, {number: submission._asdict() for number, submission in entries.items()}
        )

    def update(self, number: int, **fields: Any) -> None:
        """Change fields of a submission."""
        submission = self[number]
        if number not in self._entries:
            self.write({number: submission._replace(**fields)})
            return
        line = json.dumps({"number": number, "job": submission.job, "fields": fields}).encode()
        with append_to(self.folder / CHANGES_FILE) as file:
            file.write(b"\n" + line + b"\n")  # the first ends a line that a crash has left incomplete

    def _read(self) -> dict[int, Submission]:
        """Return the submissions, of whose files only new parts are read."""
        version = _version(self.sweep / SUBMISSIONS_FILE)
        if version != self._version:
            self._changes = AppendedFile(self._changes.path)  # all changes apply to the new file
        lines, is_new = self._changes.new_lines()
        if self._changes.error:
            raise OSError(self._changes.error)
        if version != self._version or is_new:
            self._entries = _all_submissions(self.sweep / SUBMISSIONS_FILE) if version else {}
            self._version = version
        for line in lines:
            with suppress(*READ_ERRORS):  # an incomplete line, after a crash: the change is made again
                self._apply(parse_json(line))
        return self._entries

    def _apply(self, change: Document) -> None:
        """Apply a change to a submission; one of an earlier job of the run has no effect."""
        number = int(change["number"])
        if number in self._entries and self._entries[number].job == change["job"]:
            self._entries[number] = _checked(self._entries[number]._replace(**change["fields"]))


@lru_cache(maxsize=1)
def log_of(sweep: Path) -> SubmissionLog:
    """Return the submissions of the sweep that this process runs or publishes."""
    return SubmissionLog(sweep)


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return a value that differs after each change of a file; None without the file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _all_submissions(path: Path) -> dict[int, Submission]:
    return {int(number): _checked(Submission(**fields)) for number, fields in read_document(path).items()}


def _checked(submission: Submission) -> Submission:
    if [*map(type, submission)] != [*map(type, Submission())]:
        raise ValueError(f"{SUBMISSIONS_FILE} has a value of another type")
    return submission


def attempt_id(record: Record) -> str:
    """Return an identifier of the latest start in a run's folder; empty if there is no readable one."""
    with suppress(*READ_ERRORS):
        run = RunFolder(record.folder).run
        return f"{run.record_id}.{len(run.resumed)}"
    return ""


def has_started(record: Record, submission: Submission) -> bool:
    """Return whether the job has started its run, so that the record is not the previous attempt's."""
    if not (record.folder / JOB_FILE).exists():
        return False
    return submission.previous_attempt != attempt_id(record) or RunFolder(record.folder).recorded_end is None
