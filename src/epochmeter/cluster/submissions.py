"""The submitted jobs of a sweep, listed in `slurm/jobs.json` in its folder."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.config.identity import hash_value
from epochmeter.results.run_folder import READ_ERRORS, RunFolder
from epochmeter.results.sweep_files import SUBMISSIONS_FILE
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import JOB_FILE, Record
from epochmeter.shared.record_files import read_document


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
    """The submissions of a sweep, by run number; changes are durable."""

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep
        self.folder = (sweep / SUBMISSIONS_FILE).parent  # also has the output of the jobs
        plain = re.sub(r"[^\w.-]", "_", sweep.name)
        # Name of the jobs in Slurm, without commas, which separate names. Other projects may have a sweep of this name.
        self.name = f"epochmeter-{plain}-{hash_value(str(sweep.resolve()))[:8]}"

    def __getitem__(self, number: int) -> Submission:
        return self.entries().get(number, Submission())

    def refusal(self, number: int) -> Path:
        """Return the file with the problem of a run that its job has refused."""
        return self.folder / f"{number}_refused.json"

    def entries(self) -> dict[int, Submission]:
        """Return the submissions by number; `READ_ERRORS` if their file is damaged."""
        path = self.sweep / SUBMISSIONS_FILE
        if not path.exists():
            return {}
        entries = {int(number): Submission(**fields) for number, fields in read_document(path).items()}
        if any([*map(type, submission)] != [*map(type, Submission())] for submission in entries.values()):
            raise ValueError(f"{path} has a value of another type")
        return entries

    def write(self, submissions: Mapping[int, Submission]) -> None:
        """Add submissions, or replace those of the same runs."""
        entries = {**self.entries(), **submissions}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(
            self.sweep / SUBMISSIONS_FILE, {number: submission._asdict() for number, submission in entries.items()}
        )

    def update(self, number: int, **fields: Any) -> None:
        self.write({number: self[number]._replace(**fields)})


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
