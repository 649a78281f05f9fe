"""Tables at the end of a run and of a sweep, as functions of the measurements."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rich.markup import escape
from rich.table import Table

from epochmeter.results.intervals import half_width
from epochmeter.results.metrics import find, is_quality, is_unlisted, shown_in
from epochmeter.results.quantities import ABSENT, MAX_DECIMAL, supported_decimals
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import COMPLETED, FAILED, KILLED
from epochmeter.results.summary import is_averaged, trainings_of
from epochmeter.shared.units import percentage

DIGITS = 3  # significant digits of a metric without a number of decimals
TIMES = ("e2e_s", "data_stall_s", "copy_s", "compute_s", "overhead_s")
"""Columns whose means are also printed in percent of the epoch's time."""
PERCENT_ROW = "% of time"
"""Title of the row with these means in percent."""
INTERVAL_TITLE = "± (95 %)"  # of the row with the confidence intervals of the means
STATE_COLORS = {COMPLETED: "green", FAILED: "red", KILLED: "yellow"}
UNKNOWN_COLOR = "yellow"  # of a state of another version


class ResultTable(Table):
    """A table whose first columns have texts, and the others metrics.

    Attributes:
        names: Titles of the first columns.
        metrics: Full names of the metrics in the other columns.
    """

    def __init__(self, names: Sequence[str], metrics: Sequence[str]) -> None:
        titles = [f"\n{name}" if metrics else name for name in names]  # those of metrics have two lines
        super().__init__(*titles, box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="bold")
        self.names, self.metrics = names, metrics
        for name in metrics:
            self.add_column(_in_two_lines(column_title(name)), justify="right")


def epoch_table(
    windows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float],
    warmup: int,
    trainings: Sequence[Mapping[str, float]] = (),
) -> ResultTable:
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
    table = ResultTable(["epoch"], columns)
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
    table: ResultTable,
    columns: Sequence[str],
    metrics: Mapping[str, float],
    averaged: Mapping[int, Mapping[str, float]],
) -> None:
    """Add the rows of a mean epoch, if `metrics` has one: means, their 95 % intervals, and parts in percent.

    `averaged` has the metrics of its epochs. Losses and accuracies have no mean: that would be of no model.
    """
    if not any(name.startswith("steady/") for name in metrics):
        return
    averages = {name: metrics.get(name.replace("epoch/", "steady/")) for name in columns if not is_quality(name)}
    halves = _half_widths(columns, metrics, [*averaged.values()])
    table.add_section()
    means = (cell(name, averages[name], halves.get(name)) if name in averages else "" for name in columns)
    table.add_row(mean_title([*averaged]), *means, style="bold")
    if halves:
        intervals = (cell(name, halves[name], halves[name]) if name in halves else "" for name in columns)
        table.add_row(INTERVAL_TITLE, *intervals)
    if e2e_s := averages.get("epoch/e2e_s"):
        times = {f"epoch/{name}" for name in TIMES}
        parts = {name: mean for name, mean in averages.items() if name in times and mean is not None}
        table.add_row(PERCENT_ROW, *(percentage(parts[name] / e2e_s) if name in parts else "" for name in columns))


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


def sweep_table(results: Sequence[RunResult]) -> ResultTable:
    """Return the table of a sweep: for each run the varied keys, the state and the mean epoch."""
    keys = [dict(override.partition("=")[::2] for override in result.overrides) for result in results]
    varied = [key for key in dict.fromkeys(chain(*keys)) if len({of_run.get(key) for of_run in keys}) > 1]
    measured = set(chain(*(result.metrics for result in results)))
    shown = [name for name in shown_in("sweep", "steady") if name in measured]
    columns = [*shown, *sorted(filter(is_unlisted, measured))]
    table = ResultTable(["run", *varied, "state"], columns)
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


def _in_two_lines(title: str) -> str:
    """Return a title of two lines, the first of which is shorter if both have words of about equal length."""
    words = title.split(" ")
    pairs = [(" ".join(words[:count]), " ".join(words[count:])) for count in range(1, len(words))] or [("", title)]
    return "\n".join(min(pairs, key=lambda pair: max(map(len, pair))))


def column_title(name: str) -> str:
    """Return the title of a metric's column with its unit: `time s`, `train acc %`, `samples /s`."""
    metric = find(name)
    return f"{metric.short} {metric.symbol.removeprefix(metric.short)}".rstrip()


def cell(name: str, value: float | None, half: float | None = None) -> str:
    """Return the value of a metric as a cell of a table; its unit is in the column's title.

    It has no more decimals than its interval of plus or minus `half` supports.
    """
    metric = find(name)
    if value is None:
        return ABSENT
    if metric.unit == "0..1":
        return percentage(value, metric.decimals)
    if metric.decimals is None or abs(value) >= MAX_DECIMAL:
        return f"{value:.{DIGITS}g}"
    return f"{value:.{min(metric.decimals, supported_decimals(half)) if half else metric.decimals}f}"


def titled(name: str, value: float) -> str:
    """Return the value of a metric with its short title and its unit: `train acc 91.2 %`."""
    return f"{find(name).short} {valued(name, value)}"


def valued(name: str, value: float) -> str:
    """Return the value of a metric with its unit."""
    return f"{cell(name, value)} {find(name).symbol}".rstrip()
