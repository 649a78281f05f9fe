"""The log of submitted jobs of a sweep, `slurm/jobs.json`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from epochmeter.results.run_status import recorded_status
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.record import Record
from epochmeter.sweep.sweep_folder import SUBMISSIONS_FILE
from epochmeter.tracking.queue import READ_ERRORS


class SubmissionLog:
    """The submitted jobs of a sweep, by run number.

    An entry has: `job`, the job ID; `digest`, the identity of the submitted task; `previous_attempt`, the attempt in
    the run's folder at submission; `reported`, whether the result was printed and published; `state` and `node` of the
    ended job, as Slurm gives them; `earlier`, whether the run was completed before the present command.
    """

    def __init__(self, sweep: Path) -> None:
        self._path = sweep / SUBMISSIONS_FILE
        self.folder = self._path.parent
        self.name = f"epochmeter-{sweep.name}"
        """Name of the sweep's jobs in Slurm."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return the entry of one run; empty if it was never submitted."""
        return self.entries().get(number, {})

    def entries(self) -> dict[int, dict[str, Any]]:
        """Return all entries, by run number."""
        if not self._path.exists():
            return {}
        return {int(number): entry for number, entry in read_json(self._path).items()}

    def update(self, entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Add facts to the entries of these runs, durably."""
        entries_before = self.entries()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(
            self._path,
            entries_before | {number: {**entries_before.get(number, {}), **facts} for number, facts in entries.items()},
        )


def attempt_id(record: Record) -> str | None:
    """Return an identifier of the latest start in a run's folder; None if there is no readable one."""
    with suppress(*READ_ERRORS):
        run = record.run()
        return f"{run['record_id']}.{len(run.get('resumed', []))}"
    return None


def has_started(record: Record, entry: Mapping[str, Any]) -> bool:
    """Return whether the job has started its run, so that the record is not the previous attempt's."""
    if not (record.folder / "job.json").exists():
        return False
    previous = entry.get("previous_attempt")
    return previous is None or previous != attempt_id(record) or recorded_status(record) is None
