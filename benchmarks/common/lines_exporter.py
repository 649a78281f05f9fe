"""An exporter without a client: lines of JSON in a file, as in docs/trackers.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import gettempdir

from epochmeter.tracking.exporter import ExportedRun


class Lines:
    """Writes a run to a file of the current folder for temporary files."""

    def open(self, run: ExportedRun) -> str:
        self._file = Path(gettempdir(), f"{run.project}-{run.record_id}.jsonl").open("w")  # noqa: SIM115 - until close
        self._write(name=run.name, params=dict(run.params))
        return self._file.name

    def log(self, epoch: int, metrics: Mapping[str, float]) -> None:
        self._write(epoch=epoch, metrics=dict(metrics))

    def close(self, run: ExportedRun) -> None:
        self._write(state=run.state, metrics=dict(run.metrics))
        self._file.close()

    def _write(self, **line: object) -> None:
        print(json.dumps(line), file=self._file, flush=True)
