"""Sentences at the end of a run, as functions of the measurements."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from epochmeter.console.tables import valued
from epochmeter.results.bottleneck import MIN_FRACTION, STALLS, Bottleneck
from epochmeter.results.measured_run import Gain
from epochmeter.results.metrics import find
from epochmeter.results.next_steps import NextStep
from epochmeter.results.quantities import plus_minus, quantity
from epochmeter.results.roofline import verdict
from epochmeter.shared.units import percent, percentage

MINUTE_S = 60.0
PLACES = {"setting": "set:", "code": "in the script:", "command": "run:"}
"""Kind of a change -> the words before it."""


def bottleneck_line(bottleneck: Bottleneck | None, *, is_oversubscribed: bool = False) -> str:
    """Return the bottleneck of a run's mean epoch, the data stalls and the next largest part; empty if not known."""
    if bottleneck is None:
        return ""
    shares = {part: percent(fraction) for part, fraction in bottleneck.fractions.items()}
    texts = [f"{part} {shares[part]}" for part in bottleneck.parts if part in shares and part not in STALLS]
    if stalls := [stall for stall in STALLS if stall in shares]:
        kinds = ", ".join(f"{stall.replace('_', ' ')} {shares[stall]}" for stall in stalls)
        texts.append(f"data stalls {percent(bottleneck.data_stall)}" + (f" ({kinds})" if len(stalls) > 1 else ""))
    others = {part: size for part, size in bottleneck.fractions.items() if part not in (*bottleneck.parts, *STALLS)}
    next_part = max(others, key=lambda part: others[part], default="")
    least = MIN_FRACTION if len(texts) < 2 else max(MIN_FRACTION, bottleneck.data_stall)
    texts += [f"{next_part} {shares[next_part]}"] if next_part and others[next_part] >= least else []
    label = f"{bottleneck.label}, on an oversubscribed processor" if is_oversubscribed else bottleneck.label
    return f"Bottleneck: {label}. Epoch time: {', '.join(texts)}."


def next_step_lines(steps: Sequence[NextStep]) -> list[tuple[str, str]]:
    """Return the advice and the change of each next step: a sentence to read, and a line to paste."""
    return [
        (f"{number}. {step.text}{_gain_text(step.gain)}", f"   {PLACES[step.kind]} {step.change}")
        for number, step in enumerate(steps, 1)
    ]


def _gain_text(gain: Gain | None) -> str:
    """Return what a step saves, as a sentence with a space before it; empty if that is not known."""
    if gain is None:
        return ""
    bounds = [] if gain.low is None or gain.high is None else [percentage(gain.low), percent(gain.high)]
    interval = f" ({' to '.join(bounds)})" if bounds and bounds[1] != f"{bounds[0]} %" else ""
    return f" It saves at most {percent(gain.at_most)}{interval} of the epoch's time."


def energy_line(metrics: Mapping[str, float]) -> str:
    """Return the energy of all windows of a run together, with its uncertainty; empty if it is not known."""
    energy_j, uncertainty_j = metrics.get("total/energy_j"), metrics.get("total/energy_uncertainty_j")
    if not energy_j or uncertainty_j is None:
        return ""
    text = f"Energy of the whole run: {quantity(energy_j, 'J')} (± {percent(uncertainty_j / energy_j)})"
    net_j, half_j = metrics.get("total/net_energy_j"), metrics.get("total/net_energy_uncertainty_j")
    return f"{text}." if net_j is None or half_j is None else f"{text}, {_compared_with_idle(net_j, half_j)}."


def _compared_with_idle(net_j: float, half_j: float) -> str:
    """Return a net energy and its interval in words; within its uncertainty, it may be zero."""
    if abs(net_j) <= half_j:
        return f"not distinguishable from idle ({plus_minus(net_j, half_j, 'J')})"
    return f"{plus_minus(abs(net_j), half_j, 'J')} {'above' if net_j > 0 else 'below'} idle"


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


def forecast_text(metrics: Mapping[str, float], currency: str | None = None) -> str:
    """Return the forecast of a run's totals with their 95 % intervals; empty without one."""
    if "forecast/e2e_s" not in metrics:
        return ""
    time_s, half_s = metrics["forecast/e2e_s"], metrics["forecast/e2e_uncertainty_s"]
    if max(time_s, half_s) < MINUTE_S:
        text = f"forecast total {plus_minus(time_s, half_s, 's')}"
    else:
        e2e, half = (timedelta(seconds=max(1, round(seconds))) for seconds in (time_s, half_s))
        text = f"forecast total {e2e} ± {half}"
    if "forecast/energy_j" in metrics:
        text += f", {plus_minus(metrics['forecast/energy_j'], metrics['forecast/energy_uncertainty_j'], 'J')}"
    if "forecast/cost" in metrics:
        text += f", {plus_minus(metrics['forecast/cost'], metrics['forecast/cost_uncertainty'], currency or '')}"
    return text


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
