"""Windows in the record: measurements of the training process, and the energy between the readings at the borders."""

import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from epochmeter.machine.cpu_load import CpuUse
from epochmeter.machine.energy_codes import EnergyCode, Finding
from epochmeter.machine.nvml import POWER_LIMIT_REASON
from epochmeter.power.phases.phase_energy import PhaseEnergy, phase_energy, stretch_energy
from epochmeter.power.phases.step_timeline import step_borders_s
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.window_energy import Reading, WindowEnergy, energy_of_window
from epochmeter.results.bottleneck import find_verdict
from epochmeter.results.metrics import EPOCH
from epochmeter.results.processor import CPU_SHARED, Demand, is_oversubscribed, oversubscription
from epochmeter.results.rank_merge import MergedWindow, merge_ranks
from epochmeter.results.rank_times import ranks_document, rows_of_ranks, with_waits
from epochmeter.results.run_info import DIVERGED, OVERSUBSCRIBED, PROCESS
from epochmeter.results.summary import RATIOS, step_percentiles
from epochmeter.run.instruments import WindowInstruments, write_powers
from epochmeter.run.window_verdict import energy_fields, meter_findings, without_others_energy
from epochmeter.segmentation.windows import PhaseStretches
from epochmeter.shared.protocol import NodeWindow, RankWindow, WindowClosed, WindowMeasured, WindowOpening
from epochmeter.shared.record import Record
from epochmeter.shared.units import NANOSECOND, percent

MAX_EXCESS_S, MAX_EXCESS_FRACTION = 0.02, 0.01
"""How much longer than its window, in seconds or as a fraction, the time between the two readings may be."""
MAX_TERM_EXCESS_S = 0.5
"""The same for a term of a total, whose uncertainty includes that time: reading eight GPUs takes long."""
SUM_KEYS = [name for name, metric in EPOCH.items() if metric.ranks == "sum of nodes"]
PAUSED_NOTE = "the training process was suspended and continued (SIGCONT); the times include the pause"
SUSPENDED_NOTE = "the machine was suspended; the times exclude the pause, but the energy may include it"
MIN_SUSPENSION_S = 0.1  # shortest suspension of the machine that is noted, in seconds
FLAG_CONSEQUENCES = {
    DIVERGED: "; the training diverged, and the mean loss is omitted",
    "partial": "; excluded from the means",
    "paused": "; excluded from the means",
}
MAX_RESIDUAL_FRACTION = 0.001  # tolerated difference between an epoch's two clocks, of its end-to-end time


class WindowRecord(NamedTuple):
    """A closed window.

    Attributes:
        line: Its line in the record.
        notes: Defects and disturbances of its measurement.
        flags: Those of its run, each with its reason.
        no_energy: Why it has no energy, or less than it could have; empty if there is no reason of its own.
    """

    line: Mapping[str, Any]
    notes: list[str]
    flags: dict[str, str]
    no_energy: str = ""


def build_window(
    opened: WindowOpening,
    measured: WindowMeasured,
    before: Reading,
    after: Reading,
    instruments: WindowInstruments,
    record: Record,
    earlier_steps: int = 0,
    demand: Demand | None = None,
    earlier_rank_rows: int = 0,
    timeline: "array[float] | None" = None,
    stretches: PhaseStretches | None = None,
) -> WindowRecord:
    """Build a window from the training process's messages and the readings at its borders.

    `earlier_steps` is the number of steps in the record before the window; those of later windows may follow. `demand`
    has the threads of the run that want cores; without it, no window is oversubscribed. `earlier_rank_rows` is the
    number of rows of all ranks before it. `timeline` has rows of the window's parts in order of time, if those of its
    steps are not. `stretches` has its phases with those of compute.
    """
    name, nodes, gauges = opened.window, measured.nodes, instruments.gauges
    ranks = ranks_with_waits(measured, record, earlier_rank_rows) if name == "epoch" else measured.ranks
    merged = merge_ranks(ranks)
    steps = record.steps(earlier_steps, int(merged.parts["steps"])) if name == "epoch" else array("f")
    used = _window_energy(merged.opened_ns, merged.closed_ns, before, after, instruments, steps)
    others = instruments.other_gpu_processes()
    used = without_others_energy(used, instruments.meter, is_shared=instruments.has_identified(others))
    used = sum_nodes(used, nodes)
    others += [f"{node.node}: {text}" for node in nodes for text in node.other_gpu_processes]
    powers = write_powers(instruments.meter, record, after.ended_ns)
    phases, metrics, cpu, scarce = PhaseEnergy(), _other_metrics(merged, used), CpuUse(), ""
    if name == "epoch":
        is_single = len(measured.ranks) == 1 and not nodes
        phases = _phases(merged, used, powers, timeline or steps, stretches, is_single=is_single)
        metrics = _epoch_metrics(merged, used, phases, steps)
    if name in ("epoch", PROCESS):
        metrics |= gauges.window(before.at_ns, after.at_ns)
        cpu = instruments.cpu_load.window(before.at_ns, after.at_ns)
        metrics |= _cpu_metrics(cpu) | instruments.memory.window(before.at_ns, after.at_ns)
        metrics |= instruments.gpu_counters.window(before.at_ns, after.at_ns)
        if name == "epoch" and demand and is_oversubscribed(metrics, demand, is_contended=cpu.is_contended):
            scarce = oversubscription(metrics, demand, os.cpu_count() or demand.cores)
    metrics |= instruments.data_source.window(name, merged.opened_ns, merged.closed_ns)
    throttled = gauges.throttled(before.at_ns, after.at_ns)
    causes = _flag_causes(opened, merged, after.suspended_s - before.suspended_s)
    named = {f"{name}/{key}": value for key, value in metrics.items() if math.isfinite(value)}
    contradictions = [*map(str, used.disagreements)]
    contradictions += [f"{node.node}: {text}" for node in nodes for text in node.disagreements]
    in_step, pause = [*_in_step_note(used)], causes.get("paused", "")
    validity = energy_fields(
        metrics, used, instruments.meter, phases=phases, in_step=in_step, gpu_processes=others, cpu=cpu, pause=pause,
        contradictions=contradictions, nodes=nodes,
    )  # fmt: skip
    named |= {f"rank_max/{key}": value for key, value in merged.rank_max.items() if name == "epoch"}
    verdict = find_verdict(named, instruments.data_source.medium, "epoch") if name == "epoch" else None
    line = {
        "window": name,
        "epoch": opened.epoch,
        "ranks": len(ranks),
        **({"rank_steps": measured.rank_steps} if measured.rank_steps else {}),
        **({"of_ranks": ranks_document(ranks)} if measured.rank_steps or (name == "epoch" and len(ranks) > 1) else {}),
        **{flag: True for flag in ("partial", "paused") if flag in causes},
        "opened_ns": merged.opened_ns,
        "closed_ns": merged.closed_ns,
        "metrics": {**named, **(verdict.metrics if verdict else {})},
        "energy": {
            "opened_ns": before.at_ns,
            "closed_ns": after.at_ns,
            "joules": used.joules,
            "term": {**used.term},
            **({"nodes": [node._asdict() for node in nodes]} if nodes else {}),
        },
        **validity,
        **({"phases": phases.to_record()} if phases.energy_j else {}),
        **({"other_processes": [process._asdict() for process in cpu.others]} if cpu.others else {}),
        **(verdict.document if verdict else {}),
    }
    notes = [*used.notes, *in_step, *_notes(measured.ranks, merged, metrics, phases), *throttled]
    notes += [f"{text}." for text in others]
    notes += [f"{cause}{FLAG_CONSEQUENCES[flag]}." for flag, cause in causes.items()]
    title = window_title(opened)
    flags = {
        "energy_lost": "; ".join(f"{domain} {why}" for domain, why in used.unavailable.items()),
        "energy_disagrees": f"{title}: {'; '.join(contradictions)}" if contradictions else "",
        "throttled": "; ".join(text for text in throttled if POWER_LIMIT_REASON not in text),
        "gpu_shared": "; ".join(others),
        CPU_SHARED: cpu.note and f"{title}: {cpu.note}",
        OVERSUBSCRIBED: scarce and f"{title}: {scarce}",
        **{flag: f"{title}: {cause}" for flag, cause in causes.items()},
    }
    flags = {flag: text for flag, text in flags.items() if text}
    no_energy = " ".join(f"{title}: {text}" for text in used.notes)
    return WindowRecord(line, [f"{title}: {text}" for text in notes], flags, no_energy)


def ranks_with_waits(measured: WindowMeasured, record: Record, earlier_rows: int) -> Sequence[RankWindow]:
    """Return the measurements of ranks, with how long each waited for others, as far as it is known."""
    ranks, steps = len(measured.ranks), measured.rank_steps
    rows = record.rank_rows(earlier_rows, ranks * steps) if steps else array("f")
    return with_waits(measured.ranks, rows_of_ranks(rows, ranks, steps))


def window_title(opened: WindowOpening) -> str:
    """Return the name of a window in notes."""
    if opened.window == PROCESS:
        return f"window {opened.epoch + 1}"
    return f"epoch {opened.epoch + 1}" + {"epoch": "", "val": ", evaluation"}.get(opened.window, f", {opened.window}")


def node_window(
    name: str, message: WindowClosed, before: Reading, after: Reading, instruments: WindowInstruments
) -> NodeWindow:
    """Return the energy that a node other than the first used in a window, or why there is none."""
    used = _window_energy(message.opened_ns, message.closed_ns, before, after, instruments)
    others, disagreements = instruments.other_gpu_processes(), [*map(str, used.disagreements)]
    used = without_others_energy(used, instruments.meter, is_shared=instruments.has_identified(others))
    instruments.meter.drain(after.at_ns)
    instruments.discard_before(after.at_ns)
    metrics = {key: used.metrics[key] for key in SUM_KEYS if key in used.metrics}
    reason = " ".join(used.notes) or instruments.meter.energy["reason"] or ""
    findings = [*meter_findings(instruments.meter), *used.findings]
    codes = [*dict.fromkeys(finding.code.value for finding in findings)]
    return NodeWindow(name, metrics, dict(used.joules), dict(used.term), reason, others, disagreements, codes)


def sum_nodes(used: WindowEnergy, nodes: Sequence[NodeWindow]) -> WindowEnergy:
    """Return the energy of all nodes: sums, absent where a node has none, with that node's reason.

    Uncertainties are added, because errors of equal instruments are likely equal.
    """
    if not nodes:
        return used
    findings = list(used.findings)
    metrics = {key: value for key, value in used.metrics.items() if key != "power_peak_w"}  # not at the same time
    for key in [key for key in SUM_KEYS if key in metrics]:
        lacking = [node for node in nodes if key not in node.metrics]
        texts = [f"no {key} of all nodes: {node.node} has none ({node.reason})." for node in lacking]
        findings += [Finding(EnergyCode.OTHER_NODE, text) for text in texts]
        if lacking:
            del metrics[key]
        else:
            metrics[key] += sum(node.metrics[key] for node in nodes)
    terms = [used.term, *(node.term for node in nodes)]
    values = {key: [term[key] for term in terms] for key in used.term if all(key in term for term in terms)}
    # Energies are added; of times, the slowest instrument's counts.
    total = {key: math.fsum(parts) if key.endswith("_j") else max(parts) for key, parts in values.items()}
    return used._replace(metrics=metrics, findings=findings, term=total)


def _flag_causes(opened: WindowOpening, merged: MergedWindow, suspended_s: float) -> dict[str, str]:
    """Return the flags that a window sets itself, each with its cause; the machine was suspended for `suspended_s`."""
    causes = {
        DIVERGED: "" if merged.loss is None or math.isfinite(merged.loss) else f"the loss was {merged.loss}",
        "partial": f"only {opened.steps} of {opened.epoch_steps} steps" if opened.partial else "",
        "paused": PAUSED_NOTE if merged.paused else SUSPENDED_NOTE if suspended_s >= MIN_SUSPENSION_S else "",
    }
    return {flag: cause for flag, cause in causes.items() if cause}


def _notes(
    ranks: Sequence[RankWindow], merged: MergedWindow, metrics: Mapping[str, float], phases: PhaseEnergy
) -> Iterator[str]:
    """Yield notes on defects of the measurement; a loss that is not finite sets a flag instead."""
    # The parts of a script's windows have the same clock.
    residual = max(abs(rank.parts.get("clock_residual_s", 0.0)) / rank.parts["e2e_s"] for rank in ranks)
    if residual > MAX_RESIDUAL_FRACTION:
        yield f"its parts miss {percent(residual, 2)} of its end-to-end time."
    if phases.reason:
        yield f"no energy {'of some phases' if phases.energy_j else 'by phase'}: {phases.reason}"
    if skipped := int(merged.parts.get("skipped_samples", 0)):
        more = f" and {skipped - len(merged.bad)} more" if skipped > len(merged.bad) else ""
        noun = "sample was" if skipped == 1 else "samples were"
        yield f"{skipped} bad {noun} skipped: {', '.join(merged.bad)}{more}."
    for key, value in metrics.items():
        if not math.isfinite(value) and key not in ("train_loss", "loss"):
            yield f"{key} was {value}, and is left out."


def _in_step_note(used: WindowEnergy) -> Iterator[str]:
    """Yield a note if a power sensor that measures part of the time may have seen only a part of each step."""
    if used.is_in_step:
        yield (
            "the steps were in step with the power sensor, which measures part of the time: the energy is uncertain. "
            "Another batch size changes the time per step."
        )
    elif used.is_in_step is None:
        yield (
            "the power sensor measures part of the time: the uncertainty of the energy is too small if the batches "
            "were in step with the sensor."
        )


def _window_energy(
    opened_ns: int,
    closed_ns: int,
    before: Reading,
    after: Reading,
    instruments: WindowInstruments,
    steps: "array[float] | None" = None,
) -> WindowEnergy:
    """Return the energy of a window on this node; none if the readings enclose much more time than the window."""
    window_s = (closed_ns - opened_ns) * NANOSECOND
    between_s = (after.at_ns - before.at_ns) * NANOSECOND
    borders_s = step_borders_s(steps, opened_ns) if steps else None
    used = energy_of_window(before, after, instruments.meter, window_s, instruments.idle, borders_s)
    if not instruments.meter.domains or between_s - window_s <= max(MAX_EXCESS_S, MAX_EXCESS_FRACTION * window_s):
        return used
    text = f"no energy: the counters were read {between_s:.3f} s apart for a window of {window_s:.3f} s."
    term = used.term if between_s - window_s <= MAX_TERM_EXCESS_S else {}
    return used._replace(joules={}, metrics={}, findings=[Finding(EnergyCode.READ_APART, text)], term=term)


def _epoch_metrics(
    measured: MergedWindow, used: WindowEnergy, phases: PhaseEnergy, steps: "array[float]"
) -> dict[str, float]:
    metrics = {**measured.parts, **used.metrics}
    metrics |= {f"train_{name}": score for name, score in _scores(measured).items()}
    ratios = ((name, metrics.get(above), metrics.get(below)) for name, (above, below) in RATIOS.items())
    metrics |= {name: above / below for name, above, below in ratios if above is not None and below}
    by_phase = {f"{phase}_energy_j": joules for phase, joules in phases.energy_j.items()}
    return {**metrics, **step_percentiles(steps), **by_phase}


def _cpu_metrics(use: CpuUse) -> dict[str, float]:
    """Return the metrics of the processor's use that are known."""
    metrics = {
        "other_cpu_fraction": use.other_fraction,
        "run_queue_wait_fraction": use.wait_fraction,
        "runnable_threads": use.runnable_threads,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _other_metrics(measured: MergedWindow, used: WindowEnergy) -> dict[str, float]:
    """Return the metrics of an evaluation, or of a window that a script has named itself."""
    metrics = {**measured.parts, **used.metrics}
    kept = {key: value for key, value in metrics.items() if key in EPOCH and EPOCH[key].windows}
    return {**kept, **_scores(measured)}


def _scores(measured: MergedWindow) -> dict[str, float]:
    scores = {"loss": measured.loss, "accuracy": measured.accuracy}  # accuracy: if the task has one
    return {name: score for name, score in scores.items() if score is not None}


def _phases(
    measured: MergedWindow,
    used: WindowEnergy,
    powers: PowerSamples,
    steps: "array[float]",
    stretches: PhaseStretches | None,
    *,
    is_single: bool,
) -> PhaseEnergy:
    """Return the energy of each phase of an epoch, if power was sampled and a single rank trains."""
    if "energy_j" not in used.metrics or not powers.times_ns:
        return PhaseEnergy()
    if "data_stall_s" not in measured.parts:
        return PhaseEnergy(reason="the script's waits for data are not measured.")
    if not is_single:
        return PhaseEnergy(reason="several ranks train, and their phases differ.")
    if all(math.isnan(watts) for watts in powers.total_w):
        return PhaseEnergy(reason="the parts of the total are sampled at different times.")
    total = (used.metrics["energy_j"], used.metrics.get("energy_uncertainty_j", 0.0))
    found = phase_energy(steps, measured.opened_ns, measured.closed_ns, powers, *total)
    if "copy_s" in measured.parts:
        return found
    found = found.without("copy")  # a part of compute, which is not known
    if stretches is None or not found.energy_j:
        return found
    names, codes, lasts_s, of_compute = stretches
    refined = stretch_energy(names, codes, lasts_s, measured.opened_ns, powers, *total)
    return found.with_parts(refined, of_compute)
