"""The cross-check of a run's energy with Slurm's accounting: what its windows used is at most what its job used."""

import math
from contextlib import suppress
from typing import NamedTuple

from epochmeter.machine import slurm
from epochmeter.machine.energy_codes import EnergyCode, Finding
from epochmeter.power.cross_checks import CrossCheck, Disagreement, find_disagreements
from epochmeter.results.run_info import RunInfo, read_run
from epochmeter.shared.record import Record
from epochmeter.shared.types import Document

RUN, JOB = "the run", "its Slurm job"
CHECK = CrossCheck((RUN,), "at most", (JOB,))


class RunEnergy(NamedTuple):
    """The energy of a run's process, in its windows and between them, with its 95 % confidence interval."""

    energy_j: float
    half_width_j: float


def check_slurm_energy(record: Record, job_id: str) -> None:
    """Record the energy that Slurm counted for a run's job, and mark the run's energy if it is larger.

    Nothing is recorded if Slurm accounts no energy of whole nodes, or does not answer.
    """
    run, summary = read_run(record), record.summary()
    measured = energy_of_run(run, summary or {})
    if summary is None or measured is None:
        return
    counted_j = None
    with suppress(RuntimeError):
        counted_j = slurm.consumed_energy_j(job_id) if slurm.accounts_whole_nodes() else None
    if counted_j is None:
        return
    run.slurm_energy_j = counted_j
    for disagreement in contradictions(measured, counted_j):
        text = f"{disagreement} (Slurm job {job_id})"
        run.flags.setdefault("energy_disagrees", text)
        record.write_summary(marked(summary, Finding(EnergyCode.COUNTERS_DISAGREE, text)), run.identity)
    record.describe(record.job(), run.document())


def energy_of_run(run: RunInfo, summary: Document) -> RunEnergy | None:
    """Return the energy of a run's process; None if it is not measured, or partly that of earlier jobs."""
    metrics = summary.get("metrics") or {}
    if not run.energy.is_measured or run.resumed or run.attempts:
        return None
    whole_j, half_whole_j = metrics.get("run/energy_j"), metrics.get("run/energy_uncertainty_j")
    if whole_j is not None and half_whole_j is not None:
        return RunEnergy(whole_j, half_whole_j)
    energy_j, half_width_j = metrics.get("total/energy_j"), metrics.get("total/energy_uncertainty_j")
    if energy_j is None or half_width_j is None:
        return None
    # The energy of a stage is not known: the rest is a lower bound. Its parts are of the same instruments, which may
    # err in the same direction in each, so their half-widths are added. Errors at common borders cancel, so the sum is
    # rather too wide; it is never too narrow.
    stages = run.stage_energies.values()
    return RunEnergy(
        math.fsum([energy_j, *(stage["energy_j"] for stage in stages)]),
        math.fsum([half_width_j, *(stage["uncertainty_j"] for stage in stages)]),
    )


def contradictions(measured: RunEnergy, counted_j: float) -> list[Disagreement]:
    """Return the contradiction of a run's energy and that of its job, if they differ beyond their uncertainties."""
    joules = {RUN: measured.energy_j, JOB: counted_j}
    half_widths_j = {RUN: measured.half_width_j, JOB: 1.0}  # Slurm counts whole joules
    return [*find_disagreements([CHECK], joules, lambda names: sum(half_widths_j[name] for name in names))]


def marked(summary: Document, finding: Finding) -> dict[str, object]:
    """Return a summary whose energies do not hold because of a finding."""
    energy = {
        section: {
            **verdict,
            "energy_valid": False,
            "energy_reasons": [*verdict.get("energy_reasons", []), finding.to_record()],
        }
        for section, verdict in (summary.get("energy") or {}).items()
    }
    note = f"warning: energies disagree. {finding.text}."
    return {**summary, "energy": energy, "notes": [*summary.get("notes", []), note]}
