"""The state of a run or a sweep for Prometheus, as OpenMetrics 1.0."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import get_args

from epochmeter.results.account import grouped
from epochmeter.results.metric_table import Metric
from epochmeter.results.metrics import METRICS, SECTIONS, is_unlisted
from epochmeter.watch.gauges import gauges_of
from epochmeter.watch.snapshot import ACTIVE, PARTS, RunView, Snapshot, State

PREFIX = "epochmeter_"
LINK = re.compile(r"\[(.*?)\]\(.*?\)")
ESCAPES = str.maketrans({'"': r"\"", "\\": r"\\", "\n": r"\n"})
UNITS = ("bytes_per_second", "seconds", "joules", "watts", "celsius", "hertz", "bytes", "ratio")
"""Units of OpenMetrics, each the end of the names of its families."""
ROWS = [row for row in METRICS.values() if row.openmetrics]
OF_RUNS = [row for row in ROWS if row.section not in SECTIONS.values()]
OF_GAUGES = [row for row in ROWS if row.section in SECTIONS.values()]


def _family(row: Metric) -> tuple[str, str]:
    """Return the type and the meaning of a metric of runs, without links."""
    scope = "mean of the steady epochs: " if row.section == "epoch" else ""
    return "counter" if row.section == "total" else "gauge", scope + LINK.sub(r"\1", row.meaning)


def _of_gauges(family: str) -> tuple[str, str]:
    """Return the type and the meanings of the gauges of a family."""
    return "gauge", "; ".join(row.meaning for row in OF_GAUGES if row.openmetrics == family)


FAMILIES = {
    "run": ("info", "A run that is active, or the single run."),
    "run_state": ("stateset", "State of the run."),
    "runs": ("gauge", "Number of runs by state."),
    "remaining_seconds": ("gauge", "Estimated time to the end of the run or the sweep."),
    "remaining_joules": ("gauge", "Estimated energy to the end of the run or the sweep."),
    "progress_ratio": ("gauge", "Fraction of the run's epochs that are trained."),
    "epochs": ("counter", "Recorded epochs."),
    "steps": ("counter", "Steps of the recorded epochs."),
    "unlisted": ("gauge", "Metric of a run that is not in the table of metrics, such as one of another version."),
    "unlisted_gauge": ("gauge", "Column of power.csv or gauges.csv that is not in the table of metrics."),
    **{row.openmetrics: _family(row) for row in OF_RUNS},
    **{row.openmetrics: _of_gauges(row.openmetrics) for row in OF_GAUGES},
    "epoch_part_seconds": ("gauge", "Time of the mean steady epoch by cause."),
    "epoch_part_ratio": ("gauge", "Fraction of the mean steady epoch by cause."),
    "bottleneck_ratio": ("gauge", "Fraction of the epoch in the part that is its bottleneck, or in about equal parts."),
    "run_part_seconds": ("gauge", "Time of the whole run, so far or at its end, by where it went."),
    "energy_valid": ("gauge", "1 if the energy of the mean epoch holds, or before it that of all windows; 0 if not."),
    "energy_reason": ("gauge", "1 for each code of a reason why the energy is absent or doubtful."),
    "current_epoch_steps": ("gauge", "Finished steps of the current epoch."),
    "current_epoch_part_seconds": ("gauge", "Time of the current epoch's steps by cause."),
}
"""Family -> its type and its meaning."""
SUFFIXES = {"info": "_info", "counter": "_total"}  # of the names of samples, by type
Sample = tuple[str, Mapping[str, str], float | None]  # metric, labels, and value if there is one


def to_openmetrics(snapshot: Snapshot) -> str:
    """Return the state as text; values that were not measured and gauges of ended runs are absent."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in _samples(snapshot):
        if value is not None and math.isfinite(value):
            kind, meaning = FAMILIES[name]
            unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), None)
            head = [f"# TYPE {PREFIX}{name} {kind}", f"# HELP {PREFIX}{name} {meaning}"]
            family = lines.setdefault(name, [*head, *([f"# UNIT {PREFIX}{name} {unit}"] if unit else [])])
            escaped = {label: content.translate(ESCAPES) for label, content in labels.items()}
            text = ",".join(f'{label}="{content}"' for label, content in escaped.items())
            braced = f"{{{text}}}" if text else ""
            family.append(f"{PREFIX}{name}{SUFFIXES.get(kind, '')}{braced} {float(value)!r}")
    return "\n".join([*(line for family in lines.values() for line in family), "# EOF\n"])


def _samples(snapshot: Snapshot) -> Iterator[Sample]:
    yield from (("runs", {"state": state}, count) for state, count in snapshot.counts.items())
    yield "remaining_seconds", {}, snapshot.remaining_s
    yield "remaining_joules", {}, snapshot.remaining_j
    for view in snapshot.active:
        yield from _run_samples(view)


def _run_samples(view: RunView) -> Iterator[Sample]:
    run_labels, metrics = {"run": str(view.number)}, view.metrics
    yield "run", {**run_labels, "name": view.name, "host": view.host}, 1
    yield from (
        ("run_state", {**run_labels, f"{PREFIX}run_state": state}, state == view.state) for state in get_args(State)
    )
    yield "progress_ratio", run_labels, view.progress.fraction
    yield "epochs", run_labels, view.progress.recorded
    yield "steps", run_labels, view.progress.steps
    yield from ((row.openmetrics, run_labels, metrics.get(row.name_in("steady"))) for row in OF_RUNS)
    yield from (
        ("unlisted", {**run_labels, "metric": name}, value) for name, value in metrics.items() if is_unlisted(name)
    )
    yield from (("bottleneck_ratio", {**run_labels, "part": part}, ratio) for part, ratio in view.bottleneck.items())
    yield "energy_valid", run_labels, view.energy_valid
    yield from (("energy_reason", {**run_labels, "code": code}, 1) for code in view.energy_reasons)
    groups = grouped(view.account)
    yield from (("run_part_seconds", {**run_labels, "part": part}, time_s) for part, time_s in groups.items())
    current = view.splits["current"].metrics if "current" in view.splits else {}
    yield "current_epoch_steps", run_labels, current.get("steps")
    for part in PARTS:
        labels = {**run_labels, "part": part}
        e2e_s, part_s = metrics.get("steady/e2e_s"), metrics.get(f"steady/{part}_s")
        yield "epoch_part_seconds", labels, part_s
        yield "epoch_part_ratio", labels, part_s / e2e_s if part_s is not None and e2e_s else None
        yield "current_epoch_part_seconds", labels, current.get(f"{part}_s")
    if view.state in ACTIVE:
        for gauge in gauges_of(view):
            if gauge.metric.openmetrics:
                source = "_".join(gauge.names).replace(" ", "_")
                yield gauge.metric.openmetrics, {**run_labels, "source": source}, gauge.series.latest
            elif not gauge.is_known:
                yield "unlisted_gauge", {**run_labels, "column": gauge.column}, gauge.series.latest
