"""How a run ended, for those who tell of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Any

from epochmeter.shared.record import Record


@dataclass
class Outcome:
    """How a run ended: whole, failed or killed; `earlier` where it was whole before this command."""

    number: int
    overrides: list[str]
    of_sweep: bool = False
    folder: Path | None = None
    """Its record's."""
    state: str = "whole"
    kind: str | None = None
    failure: str | None = None
    earlier: bool = False
    reused: Path | None = None
    """The folder of the completed run that is reused, measured by another command."""
    rehearsal: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    no_energy: str | None = None
    run_link: str | None = None
    compare_link: str | None = None
    unpublished: str | None = None
    began_s: float = 0.0
    ended_s: float | None = None
    """By the monotonic clock, where it came so far as to use its devices."""
    recorded: bool = False
    """Whether the record is complete; it does not change afterwards."""
    stop: BaseException | None = None
    """What stopped it, for the caller to raise once it has told of this run."""

    @property
    def keys(self) -> list[str]:
        """What was typed for it, or swept over."""
        return [override.partition("=")[0] for override in self.overrides]

    @property
    def lasted_s(self) -> float | None:
        """How long it took, with all that goes before it and after it; None where nothing was measured by it."""
        return None if self.ended_s is None else self.ended_s - self.began_s

    def ended_as(self, record: Record) -> None:
        """Takes over how a run ended that another process measured, as its record says."""
        run, summary = record.run(), record.summary()
        failure = summary["failure"] or {"kind": None, "message": None}
        self.state, self.kind, self.failure = summary["state"], failure["kind"], failure["message"]
        self.metrics, self.notes = summary["metrics"], summary["notes"]
        self.rehearsal, self.no_energy = run["rehearsal"], no_energy(run)

    def was_whole(self, record: Record) -> Outcome:
        """The outcome of a run that an earlier command measured."""
        run, summary = record.run(), record.summary()
        self.earlier, self.metrics = True, summary["metrics"]
        self.rehearsal, self.no_energy = run["rehearsal"], no_energy(run)
        return self

    def stops(self, stop: BaseException) -> None:
        """Mark the run as killed, unless its record is complete already, as during publishing."""
        if not self.recorded:
            self.fails("stopped", stopped_by(stop, os.environ))
        self.stop = stop

    def fails(self, kind: str, why: str) -> None:
        self.state, self.kind, self.failure = "killed" if kind == "stopped" else "failed", kind, why


def is_measured(run: Mapping[str, Any]) -> bool:
    """Whether the run's energy is measured, rather than estimated or absent."""
    return run["energy"].get("source") in ("counter", "sampled")


def no_energy(run: Mapping[str, Any]) -> str | None:
    """Why the run's energy is not measured; None if it is."""
    reason: str | None = None if is_measured(run) else run["energy"].get("reason")
    return reason


def stopped_by(stop: BaseException, environment: Mapping[str, str]) -> str:
    """What stopped a run. Slurm asks by the same signal whether a job's time is nearly up or it is canceled."""
    if isinstance(stop, KeyboardInterrupt):
        return "stopped by Ctrl-C"
    job = environment.get("SLURM_JOB_ID")
    if job and isinstance(stop, SystemExit) and stop.code == 128 + SIGTERM:
        return (
            f"stopped by Slurm, which ends job {job}: its time is nearly up (hydra.launcher.time= gives more), or it "
            "was canceled (scancel)"
        )
    return "stopped by a signal"
