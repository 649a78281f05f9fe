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

from epochmeter.results.bottleneck import MIN_FRACTION, STALLS, Bottleneck
from epochmeter.results.intervals import half_width
from epochmeter.results.measured_run import Gain
from epochmeter.results.metrics import find, is_unlisted, shown_in
from epochmeter.results.next_steps import NextStep
from epochmeter.results.quantities import plus_minus, quantity
from epochmeter.results.roofline import verdict
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import COMPLETED, FAILED, KILLED
from epochmeter.results.summary import is_averaged, trainings_of
from epochmeter.shared.units import percent, percentage

MINUTE_S = 60.0
DIGITS = 3  # significant digits of a metric without a number of decimals
TIMES = ("e2e_s", "data_stall_s", "copy_s", "compute_s", "overhead_s")
"""Columns whose means are also printed in percent of the epoch's time."""
PLACES = {"setting": "add:", "code": "in the script:", "command": "run:"}
"""Kind of a change -> the words before it."""
INTERVAL_TITLE = "± (95 %)"  # of the row with the confidence intervals of the means
STATE_COLORS = {COMPLETED: "green", FAILED: "red", KILLED: "yellow"}
UNKNOWN_COLOR = "yellow"  # of a state of another version


def epoch_table(
    windows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float],
    warmup: int,
    trainings: Sequence[Mapping[str, float]] = (),
) -> Table:
    """Return the table of a run: one row per epoch, the mean epoch, and its parts in percent of its time.

    `trainings` has the metrics of each training of a run with several, which have a title and a mean epoch each.
    """
    rows = [window for window in windows if window["window"] == "epoch"]
    values: dict[int, dict[str, float]] = defaultdict(dict)
    for window in windows:
        values[window["epoch"]] |= window["metrics"]
    measured = {name for row in rows for name in values[row["epoch"]]}
    columns = [*(name for name in shown_in("epochs") if name in measured), *sorted(filter(is_unlisted, measured))]
    if "epoch/train_accuracy" in columns and "val/loss" in columns:
        columns.remove("val/loss")
    table = _table(["epoch"], columns)
    groups = [group for _, group in sorted(trainings_of(windows).items())] if trainings else [rows]
    for place, (group, means) in enumerate(zip(groups, trainings or [metrics], strict=True), 1):
        of_training = [window for window in group if window["window"] == "epoch"]
        if trainings:
            table.add_section()
            table.add_row(f"training {place} of {len(trainings)}", style="bold")
        for row in of_training:
            table.add_row(epoch_title(row, warmup), *(cell(name, values[row["epoch"]].get(name)) for name in columns))
        averaged = [row["epoch"] for row in of_training if is_averaged(row, warmup)]
        _add_mean(table, columns, means, {epoch: values[epoch] for epoch in averaged})
    return table


def _add_mean(
    table: Table, columns: Sequence[str], metrics: Mapping[str, float], averaged: Mapping[int, Mapping[str, float]]
) -> None:
    """Add the rows of a mean epoch, if `metrics` has one: means, their 95 % intervals, and parts in percent.

    `averaged` has the metrics of its epochs.
    """
    if not any(name.startswith("steady/") for name in metrics):
        return
    means = {name: metrics.get(name.replace("epoch/", "steady/")) for name in columns}
    for name in columns:
        if name.startswith("epoch/"):
            continue
        if scores := [values[name] for values in averaged.values() if name in values]:
            means[name] = statistics.fmean(scores)
    table.add_section()
    table.add_row(mean_title([*averaged]), *(cell(name, means.get(name)) for name in columns), style="bold")
    if halves := _half_widths(columns, metrics, [*averaged.values()]):
        table.add_row(INTERVAL_TITLE, *(cell(name, halves[name]) if name in halves else "" for name in columns))
    if e2e_s := means.get("epoch/e2e_s"):
        times = {f"epoch/{name}" for name in TIMES}
        parts = {name: mean for name, mean in means.items() if name in times and mean is not None}
        table.add_row("% of time", *(percentage(parts[name] / e2e_s) if name in parts else "" for name in means))


def _half_widths(
    columns: Sequence[str], metrics: Mapping[str, float], epochs: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return the 95 % intervals (plus or minus) of a mean epoch's times, over its epochs, and of its measured energy.

    That of an energy is the uncertainty of its measurement. A single epoch has no interval of its times.
    """
    times = [f"epoch/{name}" for name in TIMES if len(epochs) > 1]
    known = [name for name in times if name in columns and all(name in epoch for epoch in epochs)]
    halves = {name: half_width([epoch[name] for epoch in epochs]) for name in known}
    if "epoch/energy_j" in columns and (uncertainty_j := metrics.get("steady/energy_uncertainty_j")) is not None:
        halves["epoch/energy_j"] = uncertainty_j
    return halves


def bottleneck_line(bottleneck: Bottleneck | None) -> str:
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
    return f"Bottleneck: {bottleneck.label}. Epoch time: {', '.join(texts)}."


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
    interval = f" ({percentage(gain.low)} to {percent(gain.high)})" if gain.low is not None and gain.high else ""
    return f" It saves at most {percent(gain.at_most)}{interval} of the epoch's time."


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


def mfu_line(metrics: Mapping[str, float], by_convention: Sequence[float], convention: str) -> str:
    """Return MFU, its peak, its range over conventions and the bound of the roofline; empty without MFU."""
    if not by_convention:
        return ""
    low, high = (percentage(mfu) for mfu in (by_convention[0], by_convention[-1]))
    spread = f"; {low} to {high} % over all conventions" if low != high else ""
    peak = quantity(metrics["roofline/peak_flop_per_s"], find("roofline/peak_flop_per_s").symbol)
    bound = f" Roofline: {label}." if (label := verdict(metrics)) else ""
    mfu = percent(metrics["steady/mfu"])
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


def sweep_table(results: Sequence[RunResult]) -> Table:
    """Return the table of a sweep: for each run the varied keys, the state and the mean epoch."""
    keys = [dict(override.partition("=")[::2] for override in result.overrides) for result in results]
    varied = [key for key in dict.fromkeys(chain(*keys)) if len({of_run.get(key) for of_run in keys}) > 1]
    measured = set(chain(*(result.metrics for result in results)))
    shown = [name for name in shown_in("sweep", "steady") if name in measured]
    columns = [*shown, *sorted(filter(is_unlisted, measured))]
    table = _table(["run", *varied, "state"], columns)
    for result, of_run in zip(results, keys, strict=True):
        cells = [cell(name, result.metrics.get(name)) for name in columns]
        rehearsal = " [yellow](rehearsal)[/]" if result.rehearsal else ""
        color = STATE_COLORS.get(result.state, UNKNOWN_COLOR)
        state = f"[{color}]{escape(state_name(result))}[/]{rehearsal}"
        table.add_row(str(result.number), *(escape(of_run.get(key, "")) for key in varied), state, *cells)
    return table


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


def _table(names: Sequence[str], metrics: Sequence[str]) -> Table:
    titles = [f"\n{name}" if metrics else name for name in names]  # those of metrics have two lines
    table = Table(*titles, box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="bold")
    for name in metrics:
        table.add_column(_in_two_lines(column_title(name)), justify="right")
    return table


def _in_two_lines(title: str) -> str:
    """Return a title of two lines, the first of which is shorter if both have words of about equal length."""
    words = title.split(" ")
    pairs = [(" ".join(words[:count]), " ".join(words[count:])) for count in range(1, len(words))] or [("", title)]
    return "\n".join(min(pairs, key=lambda pair: max(map(len, pair))))


def column_title(name: str) -> str:
    """Return the title of a metric's column with its unit: `time s`, `train acc %`, `samples /s`."""
    metric = find(name)
    return f"{metric.short} {metric.symbol.removeprefix(metric.short)}".rstrip()


def cell(name: str, value: float | None) -> str:
    """Return the value of a metric as a cell of a table; its unit is in the column's title."""
    metric = find(name)
    if value is None:
        return "-"
    if metric.unit == "0..1":
        return percentage(value, metric.decimals)
    return f"{value:.{DIGITS}g}" if metric.decimals is None else f"{value:.{metric.decimals}f}"


def titled(name: str, value: float) -> str:
    """Return the value of a metric with its short title and its unit: `train acc 91.2 %`."""
    return f"{find(name).short} {valued(name, value)}"


def valued(name: str, value: float) -> str:
    """Return the value of a metric with its unit."""
    return f"{cell(name, value)} {find(name).symbol}".rstrip()
