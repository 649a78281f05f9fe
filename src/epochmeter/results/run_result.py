"""The result of a run, for messages and reports."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGPIPE, SIGTERM
from typing import Any

from epochmeter.shared.record import Record


@dataclass
class RunResult:
    """How a run ended: completed, failed or killed.

    Attributes:
        earlier: Whether it was completed before this command.
        reused: Folder of the completed run that is reused.
        rehearsal: The settings that were not applied.
        mfu: MFU under each convention of counting FLOPs, the smallest first.
        end_monotonic_s: None if no device was used.
        recorded: Whether the record is complete; it does not change afterwards.
        stop: The exception that stopped the run, for the caller to raise after reporting it.
        exit_code: Of a measured script, negative if a signal ended it; None for other runs, or if it did not start.
    """

    number: int
    overrides: list[str]
    of_sweep: bool = False
    folder: Path | None = None
    state: str = "completed"
    kind: str | None = None
    failure: str | None = None
    earlier: bool = False
    reused: Path | None = None
    rehearsal: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    no_energy: str | None = None
    mfu: list[float] = field(default_factory=list)
    run_link: str | None = None
    compare_link: str | None = None
    publish_error: str | None = None
    start_monotonic_s: float = 0.0
    end_monotonic_s: float | None = None
    recorded: bool = False
    stop: BaseException | None = None
    exit_code: int | None = None

    @property
    def duration_s(self) -> float | None:
        """Duration including setup and teardown; None if nothing was measured."""
        return None if self.end_monotonic_s is None else self.end_monotonic_s - self.start_monotonic_s

    def set_from_record(self, record: Record) -> None:
        """Copy the end of a run that another process measured from its record."""
        run, summary = record.run(), record.summary()
        failure = summary["failure"] or {"kind": None, "message": None}
        self.state, self.kind, self.failure = summary["state"], failure["kind"], failure["message"]
        self.metrics, self.notes = summary["metrics"], summary["notes"]
        self.rehearsal, self.no_energy = run["rehearsal"], no_energy_reason(run)

    def set_completed_earlier(self, record: Record) -> None:
        """Copy the end of a run that an earlier command completed, without the notes of that command."""
        self.set_from_record(record)
        self.earlier, self.notes = True, []

    def set_stopped(self, stop: BaseException) -> None:
        """Mark the run as killed, unless its record is complete already, as during publishing."""
        if not self.recorded:
            self.set_failed("stopped", stop_reason(stop))
        self.stop = stop

    def set_failed(self, kind: str, why: str) -> None:
        self.state, self.kind, self.failure = "killed" if kind == "stopped" else "failed", kind, why


def is_measured(run: Mapping[str, Any]) -> bool:
    """Return whether the run's energy is measured, rather than estimated or absent."""
    return run["energy"].get("source") in ("counter", "sampled")


def no_energy_reason(run: Mapping[str, Any]) -> str | None:
    """Return why the run's energy is not measured; None if it is."""
    return None if is_measured(run) else run["energy"].get("reason")


def stop_reason(stop: BaseException) -> str:
    """Return the cause that stopped a run. Slurm sends the same signal at the time limit and on cancellation."""
    if isinstance(stop, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    job, code = os.environ.get("SLURM_JOB_ID"), stop.code if isinstance(stop, SystemExit) else None
    if code == 128 + SIGPIPE:
        return "stopped, because the reader of its output has ended"
    if job and code == 128 + SIGTERM:
        return f"stopped by Slurm: job {job} was canceled, or reached its time limit (`hydra.launcher.time`)"
    return "stopped by a signal"
