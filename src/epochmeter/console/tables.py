"""Tables and sentences at the end of a run and of a sweep, as functions of the measurements."""

import re
import statistics
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

from rich.markup import escape
from rich.table import Table

from epochmeter.results.bottleneck import STALLS, run_bottleneck
from epochmeter.results.roofline import TERA, verdict
from epochmeter.results.run_result import RunResult
from epochmeter.results.summary import is_averaged

MINUTE_S = 60.0
TIMES = ("e2e_s", "data_stall_s", "copy_s", "compute_s", "overhead_s")
"""Columns whose means are also printed in percent of the epoch's time."""
EPOCH_COLUMNS = {
    "e2e_s": ("time\ns", "{:.3f}"),
    "data_stall_s": ("data\nstall s", "{:.3f}"),
    "copy_s": ("copy\ns", "{:.3f}"),
    "compute_s": ("compute\ns", "{:.3f}"),
    "overhead_s": ("overhead\ns", "{:.3f}"),
    "energy_j": ("energy\nJ", "{:.1f}"),
    "estimated_energy_j": ("estimated\nenergy J", "{:.1f}"),
    "train_loss": ("train\nloss", "{:.4f}"),
    "train_accuracy": ("train\nacc %", "{:.1%}"),
    "val/loss": ("val\nloss", "{:.4f}"),
    "val/accuracy": ("val\nacc %", "{:.1%}"),
}
SWEEP_COLUMNS = {
    "steady/e2e_s": ("time\ns", "{:.3f}"),
    "steady/data_stall_s": ("data\nstall s", "{:.3f}"),
    "stall": ("stall\n%", "{:.1%}"),
    "steady/compute_s": ("compute\ns", "{:.3f}"),
    "steady/energy_j": ("energy\nJ", "{:.1f}"),
    "steady/estimated_energy_j": ("estimated\nenergy J", "{:.1f}"),
    "steady/samples_per_s": ("samples\n/s", "{:.0f}"),
    "throughput/samples_per_s": ("throughput\n/s", "{:.1f}"),
    "total/time_to_target_s": ("time to\ntarget s", "{:.3f}"),
    "total/energy_to_target_j": ("energy to\ntarget J", "{:.1f}"),
    "total/estimated_energy_to_target_j": ("estimated J\nto target", "{:.1f}"),
}
STATE_COLORS = {"completed": "green", "failed": "red", "killed": "yellow"}


def epoch_table(windows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float], warmup: int) -> Table:
    """Return the table of a run: one row per epoch, the mean epoch, and its parts in percent of its time."""
    rows = [window for window in windows if window["window"] == "epoch"]
    values: dict[int, dict[str, float]] = defaultdict(dict)
    for window in windows:
        values[window["epoch"]] |= {name.removeprefix("epoch/"): value for name, value in window["metrics"].items()}
    measured = {name for row in rows for name in values[row["epoch"]]}
    columns = {name: column for name, column in EPOCH_COLUMNS.items() if name in measured}
    if "train_accuracy" in columns:
        columns.pop("val/loss", None)
    table = _table(["epoch"], [*columns.values()])
    for row in rows:
        cells = [cell(values[row["epoch"]].get(name), form) for name, (_, form) in columns.items()]
        table.add_row(epoch_title(row, warmup), *cells)
    if not any(name.startswith("steady/") for name in metrics):
        return table
    averaged = [row["epoch"] for row in rows if is_averaged(row, warmup)]
    means = {name: metrics[f"steady/{name}"] for name in columns if f"steady/{name}" in metrics}
    for name in ("val/loss", "val/accuracy"):
        if scores := [values[epoch][name] for epoch in averaged if name in values[epoch]]:
            means[name] = statistics.fmean(scores)
    table.add_section()
    table.add_row(mean_title(averaged), *(cell(means.get(name), columns[name][1]) for name in columns), style="bold")
    if e2e_s := means.get("e2e_s"):
        shares = {name: percent(means[name] / e2e_s).removesuffix(" %") for name in TIMES if name in means}
        table.add_row("% of time", *(shares.get(name, "") for name in columns))
    return table


def bottleneck_line(metrics: Mapping[str, float], in_memory: bool) -> str:
    """Return the bottleneck of a run's mean epoch and its data stalls as sentences; empty if it is not known."""
    bottleneck = run_bottleneck(metrics, in_memory)
    if not bottleneck:
        return ""
    fractions = [f"{part} {percent(bottleneck.fractions[part])}" for part in bottleneck.parts if part not in STALLS]
    if stalls := [stall for stall in STALLS if stall in bottleneck.fractions]:
        kinds = ", ".join(f"{stall.replace('_', ' ')} {percent(bottleneck.fractions[stall])}" for stall in stalls)
        fractions.append(f"data stalls {percent(bottleneck.data_stall)}" + (f" ({kinds})" if len(stalls) > 1 else ""))
    return f"Bottleneck: {bottleneck.label}. Epoch time: {', '.join(fractions)}."


def percent(fraction: float) -> str:
    """Return a fraction as a text: `3.6 %`, `44 %`."""
    return f"{100 * fraction:.{0 if fraction >= 0.0995 else 1}f} %"


def wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text, which break at spaces, but not between a number and its unit."""
    joined = re.sub(r"(?<=\d) (?=\S{1,4}( |$))", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(joined, width, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def energy_line(metrics: Mapping[str, float]) -> str:
    """Return the energy of all windows of a run together, with its uncertainty; empty if it is not known."""
    energy_j, uncertainty_j = metrics.get("total/energy_j"), metrics.get("total/energy_uncertainty_j")
    if not energy_j or uncertainty_j is None:
        return ""
    text = f"Energy of the whole run: {_amount(energy_j)} (± {percent(uncertainty_j / energy_j)})"
    net_j = metrics.get("total/net_energy_j")
    return f"{text}." if net_j is None else f"{text}, {_amount(net_j)} above idle."


def footprint_line(metrics: Mapping[str, float], currency: str | None) -> str:
    """Return carbon and cost of the same energy as `energy_line`; empty if neither is known."""
    texts = []
    if (grams := metrics.get("total/co2e_g")) is not None:
        hours = dict.fromkeys(f"{metrics[f'total/intensity_{end}_g_per_kwh']:.3g}" for end in ("min", "max"))
        texts.append(f"{_amount(grams, 'g')} CO2e ({' to '.join(hours)} g/kWh)")
    if (cost := metrics.get("total/cost")) is not None:
        texts.append(_amount(cost, currency))
    return f"Footprint of this energy: {', '.join(texts)}." if texts else ""


def mfu_line(metrics: Mapping[str, float], by_convention: Sequence[float], convention: str) -> str:
    """Return MFU, its peak, its range over conventions and the bound of the roofline; empty without MFU."""
    if not by_convention:
        return ""
    low, high = (f"{100 * mfu:.3g}" for mfu in (by_convention[0], by_convention[-1]))
    spread = f"; {low} to {high} % over all conventions" if low != high else ""
    peak = metrics["roofline/peak_flop_per_s"] / TERA
    bound = f" Roofline: {label}." if (label := verdict(metrics)) else ""
    mfu = 100 * metrics["steady/mfu"]
    return f"MFU: {mfu:.3g} % of the measured peak, {peak:.3g} TFLOP/s ({convention} FLOPs{spread}).{bound}"


def other_window_lines(windows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the mean time and energy of evaluations and of windows that a script has named, one line per name."""
    metrics: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for window in windows:
        if window["window"] != "epoch":
            metrics[window["window"]].append(window["metrics"])
    lines = []
    for name, rows in metrics.items():
        energies = [row[f"{name}/energy_j"] for row in rows if f"{name}/energy_j" in row]
        energy = f", {_amount(statistics.fmean(energies))}" if len(energies) == len(rows) else ""
        mean = f"mean of {len(rows)}: " if len(rows) > 1 else ""
        title = "Evaluation" if name == "val" else name
        lines.append(f"{title}: {mean}{statistics.fmean(row[f'{name}/e2e_s'] for row in rows):.3f} s{energy}.")
    return lines


def forecast_text(metrics: Mapping[str, float], currency: str | None = None) -> str:
    """Return the forecast of a run's totals with their 95 % intervals; empty without one."""
    if "forecast/e2e_s" not in metrics:
        return ""
    time_s, half_s = metrics["forecast/e2e_s"], metrics["forecast/e2e_uncertainty_s"]
    if max(time_s, half_s) < MINUTE_S:
        text = f"forecast total {_plus_minus(time_s, half_s, 's')}"
    else:
        e2e, half = (timedelta(seconds=max(1, round(seconds))) for seconds in (time_s, half_s))
        text = f"forecast total {e2e} ± {half}"
    for name, half_name, unit in (("energy_j", "energy_uncertainty_j", "J"), ("cost", "cost_uncertainty", currency)):
        if f"forecast/{name}" in metrics:
            text += f", {_plus_minus(metrics[f'forecast/{name}'], metrics[f'forecast/{half_name}'], unit)}"
    return text


def target_line(metrics: Mapping[str, float]) -> str:
    """Return the time and energy to the quality target; empty if it was not reached."""
    if "total/epochs_to_target" not in metrics:
        return ""
    epochs, cost = int(metrics["total/epochs_to_target"]), f"{metrics['total/time_to_target_s']:.3f} s"
    for name, kind in (("energy", ""), ("estimated_energy", " (estimated)")):
        if (energy_j := metrics.get(f"total/{name}_to_target_j")) is not None:
            cost += f", {energy_j:.1f} J{kind}"
    return f"Target reached after {epochs} epoch{'s' if epochs > 1 else ''}: {cost}."


def sweep_table(results: Sequence[RunResult]) -> Table:
    """Return the table of a sweep: for each run the varied keys, the state and the mean epoch."""
    keys = [dict(override.partition("=")[::2] for override in result.overrides) for result in results]
    varied = [key for key in dict.fromkeys(chain(*keys)) if len({own.get(key) for own in keys}) > 1]
    rows = [with_stall_fraction(result.metrics, "steady/") for result in results]
    columns = {name: column for name, column in SWEEP_COLUMNS.items() if any(name in row for row in rows)}
    table = _table(["run", *varied, "state"], [*columns.values()])
    for result, own, row in zip(results, keys, rows, strict=True):
        cells = [cell(row.get(name), form) for name, (_, form) in columns.items()]
        rehearsal = " [yellow](rehearsal)[/]" if result.rehearsal else ""
        state = f"[{STATE_COLORS[result.state]}]{state_name(result)}[/]{rehearsal}"
        table.add_row(str(result.number), *(escape(own.get(key, "")) for key in varied), state, *cells)
    return table


def with_stall_fraction(metrics: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Return the metrics of an epoch with the fraction of its time in data stalls, as `stall`, if that is known."""
    e2e_s, stall_s = metrics.get(f"{prefix}e2e_s"), metrics.get(f"{prefix}data_stall_s")
    return {**metrics, "stall": stall_s / e2e_s} if e2e_s and stall_s is not None else {**metrics}


def state_name(result: RunResult) -> str:
    """Return the state of a run as the terminal shows it: completed, skipped, reused, failed or killed."""
    if result.reused:
        return "reused"
    return "skipped" if result.earlier else result.state


def epoch_title(row: Mapping[str, Any], warmup: int) -> str:
    """Return the number of an epoch, counted from 1, and why it is not part of the means."""
    flags = {**row, "warm-up": row["epoch"] < warmup or row.get("warmup")}
    flag = next((f" ({name})" for name in ("partial", "paused", "warm-up") if flags.get(name)), "")
    return f"{row['epoch'] + 1}{flag}"


def mean_title(averaged: Sequence[int]) -> str:
    """Return the label of the mean over epochs: `mean 2-6`, or `mean of 4` if some epochs between them are left out."""
    if not averaged:
        return "mean"
    first, last = averaged[0] + 1, averaged[-1] + 1
    if last - first + 1 != len(averaged):
        return f"mean of {len(averaged)}"
    return f"mean {first}-{last}" if last > first else f"mean {first}"


def _amount(value: float, unit: str | None = "J") -> str:
    return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def _plus_minus(value: float, half: float, unit: str | None) -> str:
    """Format a value and its interval with the same decimals: those of two significant digits of the interval."""
    decimals = max(0, 1 - int(f"{half:.1e}".partition("e")[2]))
    return f"{value:.{decimals}f} ± {half:.{decimals}f} {unit}"


def _table(names: Sequence[str], columns: Sequence[tuple[str, str]]) -> Table:
    titles = [f"\n{name}" if columns else name for name in names]  # those of columns have two lines
    table = Table(*titles, box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="bold")
    for title, _ in columns:
        table.add_column(title, justify="right")
    return table


def cell(value: float | None, form: str) -> str:
    """Return a number as a cell of a table; a percent sign is in the column's title."""
    return "-" if value is None else form.format(value).removesuffix("%")
