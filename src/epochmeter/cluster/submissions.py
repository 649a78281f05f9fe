"""What was sent of a sweep, and what came of it."""

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
    """A file beside the runs: the number of each -> its `job`, the `digest` of what was sent, the attempt that it
    `left` in its folder, `told` once its end has been said and published, the `state` that Slurm gave the job in the
    end, and its `node`; `earlier` of one that was whole before the command that is under way."""

    def __init__(self, sweep: Path) -> None:
        self._path = sweep / SUBMISSIONS_FILE
        self.folder = self._path.parent
        self.name = f"epochmeter-{sweep.name}"
        """That of the sweep's jobs."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        """What is known of one run; nothing of one that was never sent."""
        return self.entries().get(number, {})

    def entries(self) -> dict[int, dict[str, Any]]:
        if not self._path.exists():
            return {}
        return {int(number): entry for number, entry in read_json(self._path).items()}

    def update(self, entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Adds to what is known of these runs; it is on the disk when this returns."""
        known = self.entries()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(
            self._path, known | {number: {**known.get(number, {}), **facts} for number, facts in entries.items()}
        )


def attempt_id(record: Record) -> str | None:
    """What tells a start of a run from any other in the same folder; None where there is none that can be read."""
    with suppress(*READ_ERRORS):
        run = record.run()
        return f"{run['record_id']}.{len(run.get('resumed', []))}"
    return None


def has_started(record: Record, entry: Mapping[str, Any]) -> bool:
    """Whether the job has begun its run, rather than that the end of the attempt before still lies there."""
    if not (record.folder / "job.json").exists():
        return False
    left = entry.get("left")
    return left is None or left != attempt_id(record) or recorded_status(record) is None
