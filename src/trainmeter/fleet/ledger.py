"""What was sent of a sweep, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmeter.durable import read_json, write_json
from trainmeter.sweep import SENT


class Ledger:
    """A file beside the runs: the number of each -> its `job`, the `digest` of what was sent, `told` once that has been
    said and published, the `state` that Slurm gave the job in the end, and its `node`; `earlier` of one that was whole
    before the command that is under way."""

    def __init__(self, sweep: Path) -> None:
        self._path = sweep / SENT
        self.folder = self._path.parent
        self.name = f"trainmeter-{sweep.name}"
        """That of the sweep's jobs."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        """What is known of one run; nothing of one that was never sent."""
        return self.entries().get(number, {})

    def entries(self) -> dict[int, dict[str, Any]]:
        if not self._path.exists():
            return {}
        return {int(number): entry for number, entry in read_json(self._path).items()}

    def note(self, entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Adds to what is known of these runs; it is on the disk when this returns."""
        known = self.entries()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(
            self._path, known | {number: {**known.get(number, {}), **facts} for number, facts in entries.items()}
        )
