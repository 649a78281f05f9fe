"""The end of a run in its record: when it ended, its metrics and notes, and the next steps."""

import time
from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from statistics import fmean

from epochmeter.config.schema import Job
from epochmeter.config.secrets import redact_tree
from epochmeter.results import footprint
from epochmeter.results.account import account_of
from epochmeter.results.bottleneck import find_verdict
from epochmeter.results.budget import budget_notes
from epochmeter.results.energy_verdict import energy_verdicts
from epochmeter.results.memory import memory_metrics
from epochmeter.results.memory_growth import growth_metrics, growth_notes
from epochmeter.results.power_share import FRACTION, limit_fraction
from epochmeter.results.processor import processor_warnings
from epochmeter.results.roofline import mfu_by_convention, roofline_metrics, uncounted, utilization_notes
from epochmeter.results.run_folder import READ_ERRORS, error_text
from epochmeter.results.run_info import RunInfo
from epochmeter.results.run_result import RunResult
from epochmeter.results.straggler_of_run import straggler_of
from epochmeter.results.summary import (
    Window,
    averaged_epochs,
    averaged_windows,
    energy_warning,
    group_notes,
    idle_metrics,
    mean_energy_note,
    missed_target_note,
    no_total_note,
    summarize,
    summarize_trainings,
    training_windows,
    trainings_of,
    variance_warning,
)
from epochmeter.results.sweep_files import is_remote
from epochmeter.results.throughput import measure_throughput
from epochmeter.run.next_steps import next_steps_of
from epochmeter.run.plan import Plan, write_problem
from epochmeter.run.settling import settling_note
from epochmeter.shared.record import Record
from epochmeter.shared.types import FloatArray

NO_PARTS = "process {} ran already: its epochs, steps and their parts are not known"
SEVERAL_TRAININGS = "it has several trainings, each with means of its own (`trainings` in summary.json)"


def end_record(plan: Plan, result: RunResult) -> None:
    """Write the summary of a run that has ended; a run whose summary cannot be written has failed."""
    result.notes += resume_hint(plan) if result.state != "completed" else []
    try:
        result.notes += plan.correct_start()
        record_end(plan)
        write_summary(plan.record, plan.job, plan.run, result, ended=end_time(plan).astimezone().isoformat())
    except OSError as error:
        result.set_failed(write_problem(error))


def record_end(plan: Plan) -> None:
    """Record when the run ended; if an error or a signal ended it, its training process has just ended as well."""
    moments, now_ns = plan.run.moments, time.monotonic_ns()
    if "process_ns" in moments:
        moments.setdefault("ended_ns", now_ns)
        moments["recorded_ns"] = now_ns
        plan.describe()


def end_time(plan: Plan) -> datetime:
    """Return the end of a run: now, but that of the last window if the script ran before this command."""
    windows = plan.record.windows() if plan.job.measure.events else []
    if windows and plan.run.clock:
        return datetime.fromtimestamp(plan.run.clock.unix_s(windows[-1]["closed_ns"]))
    return datetime.now()


def write_summary(record: Record, job: Job, run: RunInfo, result: RunResult, **more: str) -> None:
    """Set the metrics and notes of a run in its result, and write its summary, with `more` keys."""
    windows = record.windows()
    groups = group_notes([*result.notes, *(note for window in windows for note in window.get("notes", []))])
    result.notes = [first + (f" ({len(more)} more with other numbers)" if more else "") for first, *more in groups]
    if windows:
        _evaluate_windows(windows, record.steps(), job, run, result)
    account = account_of(run, windows, record.steps(), job.warmup_epochs)
    result.metrics |= account.metrics
    optional = {
        **{f"model/{name}": value for name, value in run.model.items()},
        **idle_metrics(result.metrics, run.idle or {}),
        "total/power_limit_w": run.power_limit_w,
        "total/power_limit_max_w": run.power_limit_max_w,
        FRACTION: limit_fraction(result.metrics, run),
        "total/bleu": run.bleu,
    }
    result.metrics.update({name: value for name, value in optional.items() if value is not None})
    result.metrics.update(memory_metrics(record, job.batch))
    if analysis := record.trace_analysis():
        result.metrics.update({f"trace/{name}": value for name, value in analysis["metrics"].items()})
    failure = result.failure.to_fields() if result.failure else None
    steady = averaged_windows(windows, job.warmup_epochs)
    epochs = [epoch["metrics"] for epoch in steady]
    if not result.trainings:
        result.metrics.update(growth_metrics({epoch["epoch"]: epoch["metrics"] for epoch in steady}))
        result.notes += growth_notes(result.metrics)
    verdict = find_verdict(result.metrics, run.medium, "steady", epochs)
    if result.trainings:
        verdict = verdict._replace(absent=dict.fromkeys(verdict.absent, SEVERAL_TRAININGS))
    if account.reason:
        verdict = verdict._replace(absent={**verdict.absent, "run/wall_s": account.reason})
    straggler, of_straggler, no_straggler = straggler_of(record, windows, run, job.warmup_epochs)
    result.metrics |= of_straggler
    result.straggler = straggler
    if no_straggler:
        verdict = verdict._replace(absent={**verdict.absent, "straggler/excess_s": no_straggler})
    if job.measure.pid is not None:
        verdict = verdict._replace(absent={**verdict.absent, "bottleneck": NO_PARTS.format(job.measure.pid)})
    result.set_verdict(verdict)
    if result.state == "completed" and job.measure.pid is None:
        try:
            result.next_steps = next_steps_of(record, windows, job, run, result.metrics, epochs, verdict, straggler)
        except READ_ERRORS as error:  # advice that fails must not lose the summary
            result.notes.append(f"no next steps: {error_text(error)}")
    summary = {"state": result.state, "metrics": result.metrics, **verdict.document}
    summary |= {"trainings": _describe_trainings(windows, job, run, result)} if result.trainings else {}
    summary |= {"straggler": straggler} if straggler else {}
    summary |= {"next_steps": [step.to_document() for step in result.next_steps]}
    summary |= {"energy": energy_verdicts(windows, run, result.metrics, job.warmup_epochs)}
    summary |= {"notes": result.notes, "failure": failure}
    record.write_summary({**redact_tree(summary), **more}, run.identity)


def _evaluate_windows(windows: Sequence[Window], steps: FloatArray, job: Job, run: RunInfo, result: RunResult) -> None:
    """Set the means and totals of a run's windows in its result, and why any are absent or unusual."""
    convention, metrics = job.roofline.flops, summarize(windows, steps, job)
    trainings = trainings_of(windows)
    result.trainings = summarize_trainings(windows, steps, job) if len(trainings) > 1 else []
    result.set_energy(run.energy, job.meter.name)
    if run.energy.is_measured and (reason := run.energy.reason):
        result.notes.append(f"energy: {reason}")
    if run.no_bleu:
        result.notes.append(f"no BLEU: {run.no_bleu}")
    result.notes += chain(*(mean_energy_note(of_training, job.warmup_epochs) for of_training in trainings.values()))
    result.notes += [*no_total_note(training_windows(windows)), *energy_warning(windows)]
    result.notes += processor_warnings(windows, job, run) or chain(
        *map(variance_warning, result.trainings or [metrics])
    )
    carbon_and_cost, reasons = footprint.evaluate(windows, run, job)
    metrics |= carbon_and_cost
    metrics |= roofline_metrics(metrics, run, convention, job.precision, _counting_s(windows, job))
    result.mfu = mfu_by_convention(metrics, run, convention)
    result.is_lower_bound = bool(uncounted(run.training))
    result.notes += [*reasons, *utilization_notes(metrics, run, convention)]
    throughput, reason = measure_throughput(windows, steps, job)
    result.notes += [f"no throughput: {reason}"] if reason else []
    epochs, warmup = metrics["total/epochs"], job.warmup_epochs
    if result.trainings:
        result.notes.append(f"no means of the run: {SEVERAL_TRAININGS}")
    elif 0 < epochs <= warmup and result.state == "completed" and not throughput:
        which = "the only epoch is" if epochs == 1 else f"all {epochs:g} epochs are"
        result.notes.append(f"no means: {which} warm-up (`warmup_epochs={warmup}`)")
    result.notes += [*budget_notes(job, run, windows), *settling_note(run.settling, has_mean="steady/e2e_s" in metrics)]
    if result.state == "completed":
        result.notes += missed_target_note(windows, job)
    result.metrics = metrics | throughput


def _counting_s(windows: Sequence[Window], job: Job) -> float:
    """Return the mean time that the counting of a script's FLOPs has added to the averaged epochs."""
    added_s = [epoch.get("epoch/counting_s", 0.0) for epoch in averaged_epochs(windows, job.warmup_epochs)]
    return fmean(added_s) if added_s else 0.0


def _describe_trainings(
    windows: Sequence[Window], job: Job, run: RunInfo, result: RunResult
) -> list[dict[str, object]]:
    """Return the metrics, bottleneck and absent metrics of each of several trainings."""
    described = []
    of_trainings = [training for _, training in sorted(trainings_of(windows).items())]
    for place, (metrics, training) in enumerate(zip(result.trainings, of_trainings, strict=True)):
        verdict = find_verdict(metrics, run.medium, "steady", averaged_epochs(training, job.warmup_epochs))
        result.trainings[place] = {**metrics, **verdict.metrics}
        described.append({"metrics": result.trainings[place], **verdict.document})
    return described


def resume_hint(plan: Plan) -> list[str]:
    """Return how to resume a run that was interrupted; empty if it left no checkpoint."""
    checkpoint = plan.record.checkpoint()
    if checkpoint is None or checkpoint["record_id"] != plan.run.record_id:
        return []
    command = "again" if plan.request.of_sweep or is_remote(plan.record.folder.parent) else "with `sweep.resume=true`"
    return [f"a checkpoint after epoch {checkpoint['epochs']} is kept: run the same command {command} to resume"]
