"""Sentences at the end of a run, as functions of the measurements."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from epochmeter.console.tables import valued
from epochmeter.results.account import OPEN, grouped
from epochmeter.results.bottleneck import MIN_FRACTION, Bottleneck
from epochmeter.results.measured_run import MIN_LAUNCHING
from epochmeter.results.metrics import find
from epochmeter.results.next_steps import NextStep, gain_sentence
from epochmeter.results.quantities import plus_minus, quantity, within
from epochmeter.results.roofline import verdict
from epochmeter.results.run_info import PROCESS
from epochmeter.shared.phases import OTHER, PHASES
from epochmeter.shared.units import percent, percentage

MIN_SHARE = 0.01  # of a run, for a group of its account to be stated
PLACES = {"setting": "set:", "code": "in the script:", "command": "run:"}
"""Kind of a change -> the words before it."""


def bottleneck_line(bottleneck: Bottleneck | None, *, is_oversubscribed: bool = False) -> str:
    """Return the bottleneck of a run's mean epoch and the fractions of its time; empty if it is not known."""
    if bottleneck is None:
        return ""
    label = f"{bottleneck.label}, on an oversubscribed processor" if is_oversubscribed else bottleneck.label
    return f"Bottleneck: {label}. Epoch time: {bottleneck.shares}."


def launch_line(metrics: Mapping[str, float]) -> str:
    """Return how long the GPU of a traced run waited for launches; empty if not long, or not traced."""
    fraction = metrics.get("trace/idle_launch_fraction", 0.0)
    if fraction < MIN_LAUNCHING:
        return ""
    return f"Launch-bound: in {percent(fraction)} of the traced time, the GPU waited for the host to start kernels."


def phases_line(metrics: Mapping[str, float]) -> str:
    """Return the fractions of a mean epoch's compute by phase; empty if they are not known.

    Small phases are part of the rest.
    """
    compute_s = metrics.get("steady/compute_s")
    if not compute_s or f"steady/{OTHER}" not in metrics:
        return ""
    fractions = {phase: metrics[f"steady/{phase}"] / compute_s for phase in PHASES if f"steady/{phase}" in metrics}
    shown = {phase: size for phase, size in fractions.items() if phase != OTHER and size >= MIN_FRACTION}
    shown[OTHER] = 1 - sum(shown.values())
    titles = {phase: "other" if phase == OTHER else find(f"epoch/{phase}").short for phase in shown}
    texts = [f"{titles[phase]} {percent(size)}" for phase, size in shown.items()]
    return f"Compute: {', '.join(texts)}." if len(texts) > 1 else ""


def next_step_lines(steps: Sequence[NextStep]) -> list[tuple[str, str]]:
    """Return the advice and the change of each next step: a sentence to read, and a line to paste."""
    return [
        (f"{number}. {step.text}{gain_sentence(step.gain)}", f"   {PLACES[step.kind]} {step.change}")
        for number, step in enumerate(steps, 1)
    ]


def energy_line(metrics: Mapping[str, float]) -> str:
    """Return the energy of all windows of a run together, with its uncertainty; empty if it is not known."""
    energy_j, uncertainty_j = metrics.get("total/energy_j"), metrics.get("total/energy_uncertainty_j")
    if not energy_j or uncertainty_j is None:
        return ""
    text = f"Energy of epochs and evaluations: {within(energy_j, uncertainty_j, 'J')}"
    net_j, half_j = metrics.get("total/net_energy_j"), metrics.get("total/net_energy_uncertainty_j")
    return f"{text}." if net_j is None or half_j is None else f"{text}, {_compared_with_idle(net_j, half_j)}."


def _compared_with_idle(net_j: float, half_j: float) -> str:
    """Return a net energy and its interval in words; within its uncertainty, it may be zero."""
    if abs(net_j) <= half_j:
        return f"not distinguishable from idle ({plus_minus(net_j, half_j, 'J')})"
    return f"{plus_minus(abs(net_j), half_j, 'J')} {'above' if net_j > 0 else 'below'} idle"


def account_line(metrics: Mapping[str, float]) -> str:
    """Return where the time of the whole run went, or of a part so far, the largest share first; empty if unknown."""
    groups = grouped(metrics)
    if not groups:
        return ""
    wall_s = metrics["run/wall_s"]
    shares = [
        f"{name} {percent(seconds / wall_s)}" for name, seconds in groups.items() if seconds >= MIN_SHARE * wall_s
    ]
    energy_j, half_j = metrics.get("run/energy_j"), metrics.get("run/energy_uncertainty_j")
    energy = f", {within(energy_j, half_j, 'J')}" if energy_j and half_j is not None else ""
    what = "Run so far" if OPEN in metrics else "Whole run"
    return f"{what}: {quantity(wall_s, 's')}{energy}: {', '.join(shares)}."


def footprint_line(metrics: Mapping[str, float], currency: str | None) -> str:
    """Return carbon and cost of the same energy as `energy_line`; empty if neither is known."""
    texts = []
    if (grams := metrics.get("total/co2e_g")) is not None:
        hours = dict.fromkeys(f"{metrics[f'total/intensity_{end}_g_per_kwh']:.3g}" for end in ("min", "max"))
        texts.append(f"{quantity(grams, 'g')} CO2e ({' to '.join(hours)} g/kWh)")
    if (cost := metrics.get("total/cost")) is not None:
        texts.append(quantity(cost, currency or ""))
    return f"Footprint of this energy: {', '.join(texts)}." if texts else ""


def mfu_line(
    metrics: Mapping[str, float], by_convention: Sequence[float], convention: str, *, is_lower_bound: bool = False
) -> str:
    """Return MFU, its peak, its range over conventions and the bound of the roofline; empty without MFU."""
    if not by_convention:
        return ""
    low, high = (percentage(mfu) for mfu in (by_convention[0], by_convention[-1]))
    spread = f"; {low} to {high} % over all conventions" if low != high else ""
    peak = quantity(metrics["roofline/peak_flop_per_s"], find("roofline/peak_flop_per_s").symbol)
    bound = f" Roofline: {label}." if (label := verdict(metrics)) else ""
    mfu = ("at least " if is_lower_bound else "") + percent(metrics["steady/mfu"])
    return f"MFU: {mfu} of the measured peak, {peak} ({convention} FLOPs{spread}).{bound}"


def other_window_lines(windows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the mean time and energy of evaluations and of windows that a script has named, one line per name."""
    metrics: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for window in windows:
        if window["window"] != "epoch":
            metrics[window["window"]].append(window["metrics"])
    lines = []
    for name, rows in metrics.items():
        energies = [row[f"{name}/energy_j"] for row in rows if f"{name}/energy_j" in row]
        energy = f", {quantity(statistics.fmean(energies), 'J')}" if len(energies) == len(rows) else ""
        mean = f"mean of {len(rows)}: " if len(rows) > 1 else ""
        title = "Evaluation" if name == "val" else name
        time = f"{name}/e2e_s"
        lines.append(f"{title}: {mean}{valued(time, statistics.fmean(row[time] for row in rows))}{energy}.")
    return lines


def process_line(windows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float], pid: int) -> str:
    """Return for how long a running process was measured, and the energy meanwhile; empty if it was not."""
    if "run/window_s" not in metrics:
        return ""
    time_s, energy = metrics["run/window_s"], ""
    estimates = [window["metrics"].get(f"{PROCESS}/estimated_energy_j") for window in windows]
    if "run/energy_j" in metrics:
        used = within(metrics["run/energy_j"], metrics["run/energy_uncertainty_j"], "J")
        energy = f": {used}, {quantity(metrics['run/window_energy_j'] / time_s, 'W')} on average"
    elif None not in estimates:
        energy = f": {quantity(math.fsum(filter(None, estimates)), 'J')}, estimated"
    return f"Process {pid}, measured for {quantity(time_s, 's')}{energy}."


def forecast_text(metrics: Mapping[str, float], currency: str | None = None) -> str:
    """Return the forecast of a run's totals with their 95 % intervals; empty without one."""
    if "forecast/e2e_s" not in metrics:
        return ""
    time_s, half_s = metrics["forecast/e2e_s"], metrics["forecast/e2e_uncertainty_s"]
    text = f"forecast total {plus_minus(time_s, half_s, 's')}"
    if "forecast/energy_j" in metrics:
        text += f", {plus_minus(metrics['forecast/energy_j'], metrics['forecast/energy_uncertainty_j'], 'J')}"
    if "forecast/cost" in metrics:
        text += f", {plus_minus(metrics['forecast/cost'], metrics['forecast/cost_uncertainty'], currency or '')}"
    return text


def bleu_line(metrics: Mapping[str, float]) -> str:
    """Return the BLEU of the trained model; empty if it was not scored."""
    return f"BLEU: {metrics['total/bleu']:.2f} (greedy translation)." if "total/bleu" in metrics else ""


def target_line(metrics: Mapping[str, float]) -> str:
    """Return the time and energy to the quality target; empty if it was not reached."""
    if "total/epochs_to_target" not in metrics:
        return ""
    epochs, time = int(metrics["total/epochs_to_target"]), "total/time_to_target_s"
    cost = valued(time, metrics[time])
    for name, kind in (("total/energy_to_target_j", ""), ("total/estimated_energy_to_target_j", " (estimated)")):
        if name in metrics:
            cost += f", {valued(name, metrics[name])}{kind}"
    return f"Target reached after {epochs} epoch{'s' if epochs > 1 else ''}: {cost}."
