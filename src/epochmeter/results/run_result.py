"""The result of a run, for messages and reports."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGPIPE, SIGTERM
from typing import TYPE_CHECKING

from epochmeter.config.errors import REFUSAL_FILE
from epochmeter.machine import slurm
from epochmeter.results.bottleneck import Verdict, recorded_verdict
from epochmeter.results.documents import StragglerFields
from epochmeter.results.run_info import Energy, read_run
from epochmeter.shared.problem import NOWHERE, Problem, read_problem
from epochmeter.shared.record import Record

if TYPE_CHECKING:
    from epochmeter.results.next_steps import NextStep

STOPPED = "stopped"  # code of a problem


@dataclass
class RunResult:
    """How a run ended: completed, failed or killed.

    Attributes:
        earlier: Whether it was completed before this command.
        reused: Folder of the completed run that is reused.
        rehearsal: The settings that were not applied.
        trainings: Metrics of each training, if the run has several; they are those of a run with that training alone.
        no_energy: Why energy was not measured.
        requested_meter: `none` or `estimate`, if energy was not measured because this meter is configured.
        mfu: MFU under each convention of counting FLOPs, the smallest first.
        is_lower_bound: Whether not all FLOPs of the script were counted.
        bottleneck: The largest part of the mean epoch; empty if it is not known.
        absent: Why the bottleneck, or a stall by its full name, is not known.
        straggler: The rank for which the others wait; None without one.
        next_steps: What to do after it, the best first; not of a run that an earlier command measured.
        end_monotonic_s: None if no device was used.
        exports: Other tracker -> address of the run there, or the command that shows it.
        export_errors: Warnings about other trackers.
        recorded: Whether the record is complete; it does not change afterwards.
        stop: The exception that stopped the run, for the caller to raise after reporting it.
        exit_code: Of a measured script, negative if a signal ended it; None for other runs, or if it did not start.
    """

    number: int
    overrides: list[str]
    of_sweep: bool = False
    folder: Path | None = None
    state: str = "completed"
    failure: Problem | None = None
    earlier: bool = False
    reused: Path | None = None
    rehearsal: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    trainings: list[dict[str, float]] = field(default_factory=list)
    no_energy: Problem | None = None
    requested_meter: str = ""
    mfu: list[float] = field(default_factory=list)
    is_lower_bound: bool = False
    bottleneck: str = ""
    absent: dict[str, str] = field(default_factory=dict)
    straggler: StragglerFields | None = None
    next_steps: "list[NextStep]" = field(default_factory=list)
    run_link: str | None = None
    compare_link: str | None = None
    publish_error: str | None = None
    exports: dict[str, str | None] = field(default_factory=dict)
    export_errors: list[str] = field(default_factory=list)
    start_monotonic_s: float = 0.0
    end_monotonic_s: float | None = None
    recorded: bool = False
    stop: BaseException | None = None
    exit_code: int | None = None

    @property
    def duration_s(self) -> float | None:
        """Duration including setup and teardown; None if nothing was measured."""
        return None if self.end_monotonic_s is None else self.end_monotonic_s - self.start_monotonic_s

    def to_fields(self) -> dict[str, object]:
        """Return the values for JSON, as the document of a command with `format=json` has them."""
        return {
            "number": self.number,
            "folder": str(self.folder) if self.folder else None,
            "overrides": self.overrides,
            "state": self.state,
            "exit_code": self.exit_code,
            "earlier": self.earlier,
            "reused": str(self.reused) if self.reused else None,
            "rehearsal": self.rehearsal,
            "failure": self.failure.to_fields() if self.failure else None,
            "metrics": self.metrics,
            "absent": self.absent,
            "no_energy": self.no_energy.to_fields() if self.no_energy else None,
            "bottleneck": self.bottleneck,
            "straggler": self.straggler,
            "next_steps": [step.to_document() for step in self.next_steps],
            "notes": self.notes,
            "link": self.run_link,
            "exports": self.exports,
        }

    def set_from_record(self, record: Record) -> None:
        """Copy the end of a run that another process measured from its record."""
        run, summary = read_run(record), record.summary() or {}
        self.state, self.failure = summary["state"], read_problem(summary["failure"])
        self.metrics, self.notes = summary["metrics"], summary["notes"]
        self.trainings = [training["metrics"] for training in summary.get("trainings", [])]
        self.set_verdict(recorded_verdict(summary, run.medium, "steady"))
        self.straggler = summary.get("straggler")
        self.rehearsal = run.rehearsal
        self.set_energy(run.energy, (record.job().get("meter") or {}).get("name", ""))

    def set_energy(self, energy: Energy, meter: str) -> None:
        """Set why a run with the meter of this name has no measured energy, if it has none."""
        self.no_energy = energy.missing
        self.requested_meter = meter if meter == "none" or energy.source == "estimated" else ""

    def set_verdict(self, verdict: Verdict) -> None:
        self.metrics = {**self.metrics, **verdict.metrics}
        self.bottleneck, self.absent = verdict.bottleneck, verdict.absent

    def set_completed_earlier(self, record: Record) -> None:
        """Copy the end of a run that an earlier command completed, without the notes of that command."""
        self.set_from_record(record)
        self.earlier, self.notes = True, []

    def set_stopped(self, stop: BaseException) -> None:
        """Mark the run as killed, unless its record is complete already, as during publishing."""
        if not self.recorded:
            self.set_failed(stop_problem(stop))
        self.stop = stop

    def set_failed(self, failure: Problem) -> None:
        self.state, self.failure = "killed" if failure.code == STOPPED else "failed", failure


def stop_problem(stop: BaseException) -> Problem:
    """Return the cause that stopped a run."""
    if isinstance(stop, KeyboardInterrupt):
        return Problem("stopped by Ctrl-C", code=STOPPED)
    code = stop.code if isinstance(stop, SystemExit) else None
    if code == 128 + SIGPIPE:
        return Problem("stopped, because the reader of its output has ended", code=STOPPED)
    return (slurm_problem() if code == 128 + SIGTERM else None) or Problem("stopped by a signal", code=STOPPED)


def slurm_problem() -> Problem | None:
    """Return why Slurm, which has sent SIGTERM, ends this job; None outside of Slurm."""
    job = slurm.ending_job(os.environ)
    if job is None:
        return None
    if not job.state:
        text = f"stopped by SIGTERM; whether Slurm ends job {job.job_id} is not known, as scontrol does not respond"
        return Problem(text, code=STOPPED)
    problem = slurm.end_problem(job)
    if problem.where.key and REFUSAL_FILE not in os.environ:  # started by srun or sbatch, not by the launcher
        return problem._replace(hint="raise the limit of the job, such as `--time` of srun or sbatch", where=NOWHERE)
    return problem
