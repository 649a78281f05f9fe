"""What is told at the end of a run and of a sweep, as functions of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from epochmeter.results.bottleneck import find_bottleneck, part_seconds, sentence
from epochmeter.results.run_result import Outcome

ABSENT = "-"
COLUMNS = {
    "e2e\ns": ("e2e_s", "{:.3f}"),
    "fetch\nstall s": ("fetch_stall_s", "{:.3f}"),
    "copy\ns": ("copy_s", "{:.3f}"),
    "compute\ns": ("compute_s", "{:.3f}"),
    "overhead\ns": ("overhead_s", "{:.3f}"),
    "energy\nJ": ("energy_j", "{:.1f}"),
    "loss": ("train_loss", "{:.4f}"),
    "accuracy": ("train_accuracy", "{:.4f}"),
}
ESTIMATE = {"estimated\nenergy J": ("estimated_energy_j", "{:.1f}")}
SWEEP_COLUMNS = {
    "e2e\ns": ("steady/e2e_s", "{:.3f}"),
    "fetch\nstall s": ("steady/fetch_stall_s", "{:.3f}"),
    "compute\ns": ("steady/compute_s", "{:.3f}"),
    "energy\nJ": ("steady/energy_j", "{:.1f}"),
    "samples\n/s": ("steady/samples_per_s", "{:.0f}"),
}
THROUGHPUT = {"throughput\n/s": ("throughput/samples_per_s", "{:.1f}")}
DATA = {
    "loader_read_s": "{:.3f} s reading",
    "loader_preprocess_s": "{:.3f} s preprocessing (in all processes together)",
    "read_bytes": "{} read from its disk, by whatever process",
    "read_bytes_per_s": "at {}/s",
    "cached_share_before": "{:.0%} in the page cache before",
    "cached_share_after": "{:.0%} after",
}
SCORES = ("epoch/train_loss", "epoch/train_accuracy", "val/loss", "val/accuracy")
STATES = {"whole": "green", "failed": "red", "killed": "yellow"}


def epochs(windows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float], warmup: int) -> Table:
    """The closing table: a row an epoch, and their steady means."""
    rows = [window for window in windows if window["window"] == "epoch"]
    estimated = any("epoch/estimated_energy_j" in row["metrics"] for row in rows)
    columns = COLUMNS | ESTIMATE if estimated else COLUMNS
    score = "accuracy"
    if not any("epoch/train_accuracy" in row["metrics"] for row in rows):  # a task that knows no right and wrong
        score = "loss"
        columns = {title: column for title, column in columns.items() if title != "accuracy"}
    judged = {w["epoch"]: w["metrics"].get(f"val/{score}") for w in windows if w["window"] == "val"}
    table = Table("epoch", box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="bold")
    for title in [*columns, *([f"val\n{score}"] if judged else [])]:
        table.add_column(title, justify="right")
    for row in rows:
        cells = [_cell(row["metrics"], f"epoch/{name}", form) for name, form in columns.values()]
        scored = _cell({"value": judged.get(row["epoch"])}, "value", "{:.4f}")
        warming = row["epoch"] < warmup or row.get("warmup")
        why = {"in part": row.get("partial"), "paused": row.get("paused"), "warm-up": warming}
        note = next((word for word, holds in why.items() if holds), "")
        table.add_row(f"{row['epoch']} {note}".strip(), *cells, *([scored] if judged else []))
    if any(name.startswith("steady/") for name in metrics):
        table.add_section()
        steady = [_cell(metrics, f"steady/{name}", form) for name, form in columns.values()]
        table.add_row("steady", *steady, *([""] if judged else []), style="bold")
    return table


def bottleneck(metrics: Mapping[str, float], in_memory: bool) -> str:
    """Return the bottleneck of a run's mean epoch as a sentence; empty if it is not known.

    Args:
        metrics: The run's metrics.
        in_memory: Whether its dataset is in memory.
    """
    e2e_s = metrics.get("steady/e2e_s")
    found = find_bottleneck(part_seconds(metrics, in_memory), e2e_s) if e2e_s else None
    return sentence([found]) if found else ""


def data(metrics: Mapping[str, float]) -> str:
    """Where a steady epoch's samples came from, as far as that is known."""
    known = {name: metrics.get(f"steady/{name}") for name in DATA}
    told = [
        form.format(decimal(int(value)) if "bytes" in name else value)
        for name, form in DATA.items()
        if (value := known[name]) is not None and not (name == "read_bytes_per_s" and value < 1)
    ]
    return f"Data of a steady epoch: {', '.join(told)}." if told else ""


def throughput(metrics: Mapping[str, float]) -> str:
    """What was measured between the two steps that were asked for."""
    if "throughput/samples_per_s" not in metrics:
        return ""
    asked = {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("throughput/")}
    return "Throughput of {steps:.0f} steps: {samples_per_s:.1f} samples/s.".format(**asked)


def target(windows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> str:
    """When the target was reached, by what, and what it cost; nothing where it was not, or none was set."""
    if "total/epochs_to_target" not in metrics:
        return ""
    epochs = int(metrics["total/epochs_to_target"])
    cost = f"{metrics['total/time_to_target_s']:.3f} s"
    if "total/energy_to_target_j" in metrics:
        cost += f" and {metrics['total/energy_to_target_j']:.1f} J"
    # An evaluation decides, where there is one; it follows its epoch.
    decided = [window["metrics"] for window in windows if window["epoch"] == epochs - 1][-1]
    scores = ", ".join(f"{name} {value:.4f}" for name, value in decided.items() if name in SCORES)
    after = f"{epochs} epoch{'s' if epochs > 1 else ''}"
    return f"The target was reached after {after}, in {cost} ({scores})."


def sweep(outcomes: Sequence[Outcome]) -> Table:
    """The table of a sweep: what varied, how each run ended, and what it took."""
    varied = _varied(outcomes)
    between = any("throughput/samples_per_s" in outcome.metrics for outcome in outcomes)
    columns = SWEEP_COLUMNS | (THROUGHPUT if between else {})
    table = Table("run", *varied, "state", box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for title in columns:
        table.add_column(title, justify="right")
    for outcome in outcomes:
        keys = dict(_pair(override) for override in outcome.overrides)
        cells = [_cell(outcome.metrics, name, form) for name, form in columns.values()]
        table.add_row(str(outcome.number), *(escape(keys.get(key, "")) for key in varied), _state(outcome), *cells)
    return table


def _varied(outcomes: Sequence[Outcome]) -> list[str]:
    """The keys that are not the same in all of a sweep's runs."""
    typed = [dict(_pair(override) for override in outcome.overrides) for outcome in outcomes]
    keys = dict.fromkeys(key for pairs in typed for key in pairs)
    return [key for key in keys if len({pairs.get(key) for pairs in typed}) > 1]


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def _state(outcome: Outcome) -> str:
    color = STATES[outcome.state]
    if outcome.reused:  # the run's own line has said from where
        return f"[{color}]reused[/]"
    rehearsal = " [yellow]rehearsal[/]" if outcome.rehearsal else ""
    return f"[{color}]{outcome.state}[/]{' before' if outcome.earlier else ''}{rehearsal}"


def _cell(metrics: Mapping[str, float | None], name: str, form: str) -> str:
    value = metrics.get(name)
    return ABSENT if value is None else form.format(value)
