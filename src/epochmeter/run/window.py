"""A window, as the steward sees it: what is read at its borders, and the line it becomes in the record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from epochmeter.machine.gpu_processes import NO_GPUS, GpuProcessMonitor
from epochmeter.machine.nvml import POWER_LIMIT_REASON
from epochmeter.machine.utilization import Gauges
from epochmeter.power.meter import Meter
from epochmeter.power.phases.phase_energy import PhaseEnergy, phase_energy
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.window_energy import Reading, WindowEnergy, energy_of_window, take_reading
from epochmeter.results.rank_merge import MergedWindow, merge_ranks
from epochmeter.results.summary import ENERGIES, step_percentiles
from epochmeter.run.data_source import DataSource
from epochmeter.shared.protocol import NodeWindow, RankWindow, WindowClosed, WindowMeasured, WindowOpening
from epochmeter.shared.record import Record
from epochmeter.shared.units import NANOSECOND

MAX_EXCESS_S, MAX_EXCESS_FRACTION = 0.02, 0.01
"""How much longer than its window, in seconds or as a share of it, the stretch between the readings may be."""
MAX_TERM_EXCESS_S = 0.5
"""The same for energy as a term of a total, whose uncertainty includes the energy of that time.

Reading the counters of eight GPUs takes longer than `MAX_EXCESS_S`; without this, one short evaluation would leave
such a run without a total.
"""

SUM_KEYS = (
    "energy_j",
    "net_energy_j",
    "estimated_energy_j",
    "machine_energy_j",
    "energy_uncertainty_j",
    "power_mean_w",
)
"""What the nodes of a run add up to."""

SEVERAL_RANKS_REASON = "several ranks train, and their phases differ."
PAUSED_NOTE = "the training process was suspended and continued (SIGCONT); the pause is included in its times"
FLAG_CONSEQUENCES = {
    "diverged": "; its mean loss is omitted",
    "partial": " at throughput.stop; it is not included in the means",
    "paused": "; it is not included in the means",
}
"""What follows from a flaw of a window."""
MAX_RESIDUAL_FRACTION = 0.001
"""The share of an epoch's end-to-end time by which its two clocks may disagree without a word."""


class WindowInstruments(NamedTuple):
    """What is read at the borders of windows."""

    meter: Meter
    gauges: Gauges
    data_source: DataSource
    idle_w: float | None = None
    """The power while nothing trained."""
    gpu_monitor: GpuProcessMonitor = NO_GPUS

    def read_start(self) -> Reading:
        """The joules at a window's opening, read last, so that no more than the window lies between two readings."""
        self.gpu_monitor.poll()
        self.data_source.mark()
        self.gauges.mark()
        return take_reading(self.meter)

    def read_end(self) -> Reading:
        """The joules at its closing, read first."""
        joules = take_reading(self.meter)
        self.gauges.mark()
        self.data_source.mark()
        return joules


class Window(NamedTuple):
    """A closed window: its line in the record, what there is to say of it, and the flags of its run."""

    line: dict[str, Any]
    notes: list[str]
    flags: dict[str, str]


class WindowMetrics(NamedTuple):
    """What a window of its kind tells, an epoch or an evaluation: metrics under their short names."""

    metrics: dict[str, float]
    notes: Sequence[str] = ()
    extra: Mapping[str, Any] = MappingProxyType({})
    """What its line holds beside them."""


def build_window(
    opened: WindowOpening,
    measured: WindowMeasured,
    before: Reading,
    after: Reading,
    panel: WindowInstruments,
    record: Record,
) -> Window:
    """Build a window from the training process's messages and the readings at its borders."""
    name, ranks, nodes = opened.window, measured.ranks, measured.nodes
    merged = merge_ranks(ranks)
    used = sum_nodes(_window_energy(merged.opened_ns, merged.closed_ns, before, after, panel), nodes)
    powers = write_powers(panel.meter, record)
    throttled = panel.gauges.throttled(before.at_ns, after.at_ns)
    others = [
        *other_gpu_processes(panel),
        *(f"{node.node}: {text}" for node in nodes for text in node.other_gpu_processes),
    ]
    if name == "epoch":
        phases = _phases(merged, used, powers, record, alone=len(ranks) == 1 and not nodes)
        told = _epoch(merged, used, phases, panel.gauges.window(before.at_ns, after.at_ns), record)
    else:
        told = _val(merged, used)
    metrics = {**told.metrics, **panel.data_source.window(name, merged.parts["e2e_s"])}
    panel.gauges.discard_before(after.at_ns)
    flaws = {
        "diverged": divergence_note(merged, record) if name == "epoch" else evaluated_as(merged.loss),
        "partial": f"ended after {opened.steps} of {opened.epoch_steps} steps" if opened.partial else "",
        "paused": PAUSED_NOTE if merged.paused else "",
    }
    line = {
        "window": name,
        "epoch": opened.epoch,
        "ranks": len(ranks),
        **{flaw: True for flaw in ("partial", "paused") if flaws[flaw]},
        "opened_ns": merged.opened_ns,
        "closed_ns": merged.closed_ns,
        "metrics": {f"{name}/{key}": value for key, value in metrics.items() if math.isfinite(value)}
        | {f"rank_max/{key}": value for key, value in merged.rank_max.items() if name == "epoch"},
        "energy": {"opened_ns": before.at_ns, "closed_ns": after.at_ns, "joules": used.joules, "term": {**used.term}}
        | ({"nodes": [node._asdict() for node in nodes]} if nodes else {}),
        **told.extra,
    }
    title = f"epoch {opened.epoch + 1}" + (", evaluation" if name == "val" else "")
    flags = {
        "energy_lost": "; ".join(f"{domain} {why}" for domain, why in used.unavailable.items()),
        "throttled": "; ".join(text for text in throttled if POWER_LIMIT_REASON not in text),
        "gpu_shared": "; ".join(others),
        **{flaw: f"{title}: {why}" for flaw, why in flaws.items() if why},
    }
    shared_gpu = [f"{text}." for text in others]
    notes = [
        *used.notes,
        *clock_disagreement_note(ranks),
        *throttled,
        *shared_gpu,
        *told.notes,
        *skipped_samples_note(merged),
        *not_finite_notes(metrics),
    ]
    notes += [f"{why}{FLAG_CONSEQUENCES[flaw]}." for flaw, why in flaws.items() if why]
    return Window(line, [f"{title}: {text}" for text in notes], {key: text for key, text in flags.items() if text})


def node_window(
    name: str, message: WindowClosed, before: Reading, after: Reading, panel: WindowInstruments
) -> NodeWindow:
    """Return the energy that a node other than the first used in a window, or why there is none."""
    used = _window_energy(message.opened_ns, message.closed_ns, before, after, panel)
    panel.meter.drain(after.at_ns)
    panel.gauges.discard_before(after.at_ns)
    metrics = {key: used.metrics[key] for key in SUM_KEYS if key in used.metrics}
    why = " ".join(used.notes) or panel.meter.energy["reason"] or ""
    return NodeWindow(name, metrics, dict(used.joules), dict(used.term), why, other_gpu_processes(panel))


def other_gpu_processes(panel: WindowInstruments) -> list[str]:
    """Other processes that computed on the GPUs at either border of a closed window."""
    panel.gpu_monitor.poll()
    return panel.gpu_monitor.drain()


def sum_nodes(used: WindowEnergy, nodes: Sequence[NodeWindow]) -> WindowEnergy:
    """The consumption of all nodes: sums, absent where any node has none, with what that node says of it.

    Half-widths are added too: what is wrong with one node's instruments is likely wrong with the others'. The peak of
    all is not known, for nodes peak at different moments.
    """
    if not nodes:
        return used
    metrics, notes = dict(used.metrics), list(used.notes)
    metrics.pop("power_peak_w", None)
    for key in SUM_KEYS:
        if key not in metrics:
            continue
        lacking = [node for node in nodes if key not in node.metrics]
        if lacking:
            del metrics[key]
            notes += [f"no {key} of all nodes: {node.node} has none ({node.reason})." for node in lacking]
        else:
            metrics[key] += sum(node.metrics[key] for node in nodes)
    terms = [used.term, *(node.term for node in nodes)]
    term = {key: _fold(key, terms) for key in used.term if all(key in each for each in terms)}
    return used._replace(metrics=metrics, notes=notes, term=term)


def _fold(key: str, terms: Sequence[Mapping[str, float]]) -> float:
    """One number of several nodes: the sum of energies, and the slowest instrument's times."""
    values = [term[key] for term in terms]
    return math.fsum(values) if key.endswith("_j") else max(values)


def write_powers(meter: Meter, record: Record) -> PowerSamples:
    """Hands over the samples of power so far, once they are in the record."""
    powers = meter.drain(time.monotonic_ns())
    record.append_power(powers.times_ns, {**powers.watts, "total": powers.total_w})
    return powers


def clock_disagreement_note(ranks: Sequence[RankWindow]) -> list[str]:
    """A note where the end-to-end clock of a rank and its marks differ by more than they should, of the worst."""
    parts = max((rank.parts for rank in ranks), key=lambda parts: abs(parts["clock_residual_s"]))
    share = abs(parts["clock_residual_s"]) / parts["e2e_s"]
    return [f"its parts miss {share:.2%} of its end-to-end time."] if share > MAX_RESIDUAL_FRACTION else []


def skipped_samples_note(measured: MergedWindow) -> list[str]:
    """A note on the samples that were left out, with the first few by name."""
    count, named = int(measured.parts.get("skipped_samples", 0)), measured.bad
    if not count:
        return []
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return [f"{count} bad samples were skipped: {', '.join(named)}{more}."]


def not_finite_notes(metrics: Mapping[str, float]) -> list[str]:
    """A note on each metric that is no number, or infinite; of a loss the divergence tells."""
    return [
        f"{key} was {value}, and is left out."
        for key, value in metrics.items()
        if not math.isfinite(value) and key not in ("train_loss", "loss")
    ]


def divergence_note(measured: MergedWindow, record: Record) -> str:
    """What to say of an epoch whose loss is no number, or infinite: the step that was the first, of all epochs'."""
    if math.isfinite(measured.loss):
        return ""
    losses, count = record.losses(), int(measured.parts["steps"])
    for step in range(max(0, len(losses) - count), len(losses)):
        if not math.isfinite(losses[step]):
            return f"the loss was {losses[step]} at step {step} of the run, the first that was not finite"
    return evaluated_as(measured.loss)


def evaluated_as(loss: float) -> str:
    return "" if math.isfinite(loss) else f"the loss was {loss}"


def _window_energy(
    opened_ns: int, closed_ns: int, before: Reading, after: Reading, panel: WindowInstruments
) -> WindowEnergy:
    window_s = (closed_ns - opened_ns) * NANOSECOND
    between_s = (after.at_ns - before.at_ns) * NANOSECOND
    used = energy_of_window(before, after, panel.meter, window_s, panel.idle_w)
    if not panel.meter.domains or between_s - window_s <= max(MAX_EXCESS_S, MAX_EXCESS_FRACTION * window_s):
        return used
    note = f"no energy: the counters were read {between_s:.3f} s apart, much longer than the window."
    term = used.term if between_s - window_s <= MAX_TERM_EXCESS_S else {}
    return WindowEnergy({}, {}, [note], used.unavailable, term)


def _epoch(
    measured: MergedWindow, used: WindowEnergy, phases: PhaseEnergy, gauges: Mapping[str, float], record: Record
) -> WindowMetrics:
    metrics = {**measured.parts, **_scores(measured, "train_"), **used.metrics}
    metrics["samples_per_s"] = metrics["samples"] / metrics["e2e_s"]
    if "energy_j" in metrics:
        metrics["energy_per_sample_j"] = metrics["energy_j"] / metrics["samples"]
    by_phase = {f"{phase}_energy_j": joules for phase, joules in phases.energy_j.items()}
    return WindowMetrics(
        metrics={**metrics, **gauges, **step_percentiles(record.last_steps(int(measured.parts["steps"]))), **by_phase},
        notes=[f"no energy {'of some phases' if by_phase else 'by phase'}: {phases.reason}"] if phases.reason else [],
        extra={"phases": phases.to_record()} if by_phase else {},
    )


def _val(measured: MergedWindow, used: WindowEnergy) -> WindowMetrics:
    totals = {name: joules for name, joules in used.metrics.items() if name in ENERGIES}
    parts: dict[str, float] = {
        name: measured.parts[name] for name in ("e2e_s", "skipped_samples") if name in measured.parts
    }
    return WindowMetrics({**parts, **_scores(measured), **totals})


def _scores(measured: MergedWindow, prefix: str = "") -> dict[str, float]:
    """Loss, and accuracy where the task knows right from wrong."""
    scores = {"loss": measured.loss, "accuracy": measured.accuracy}
    return {f"{prefix}{name}": score for name, score in scores.items() if score is not None}


def _phases(
    measured: MergedWindow, used: WindowEnergy, powers: PowerSamples, record: Record, *, alone: bool
) -> PhaseEnergy:
    """The energy used during each phase, where power was sampled, and one rank trained `alone`."""
    if "energy_j" not in used.metrics or not powers.times_ns:
        return PhaseEnergy()
    if not alone:
        return PhaseEnergy(reason=SEVERAL_RANKS_REASON)
    if not any(watts == watts for watts in powers.total_w):  # a sum's parts are sampled each by itself
        return PhaseEnergy(reason="the parts of the total are sampled at different times.")
    window, steps = (measured.opened_ns, measured.closed_ns), record.last_steps(int(measured.parts["steps"]))
    gross = (used.metrics["energy_j"], used.metrics.get("energy_uncertainty_j", 0.0))
    return phase_energy(steps, *window, powers.times_ns, powers.total_w, *gross, powers.response)
