"""What a person sees of a run and of a sweep in the terminal."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trainmeter.outcome import Outcome
from trainmeter.pace import about, left_s
from trainmeter.redaction import redacted
from trainmeter.tracking.views import LOCAL

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
LINE_S = 1.0
STATES = {"whole": "green", "failed": "red", "killed": "yellow"}


class Voice(logging.Handler):
    """Has the warnings of meters, from whatever thread, printed above the progress line."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        self._terminal.warn(record.getMessage())


class Terminal:
    """Prints as a run goes on: a progress line where a person watches, a line for each epoch in a file.

    Of epochs that take less than `LINE_S` some have none.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        # Drawn when the worker tells of progress, never by a thread of its own: it would share the worker's cores.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[loss]}"),
            console=self.console,
            auto_refresh=False,
            transient=True,
            disable=not self._draws,
        )
        self._opened_s: list[float] = []
        """When each epoch opened."""
        self._told_s = 0.0
        self._task = self._progress.add_task("", total=None, loss="")
        logging.getLogger("trainmeter").handlers = [Voice(self)]

    def say(self, text: str, style: str = "") -> None:
        """Prints a text, wrapped at words where a person reads it; links, and all in a file, stay in one piece."""
        text = redacted(text)
        self.console.print(escape(text), style=style, soft_wrap="://" in text or not self.console.is_terminal)

    def warn(self, text: str) -> None:
        self.say(text, style="yellow")

    def begun(
        self, name: str, folder: Path, rehearsal: Sequence[str], warnings: Sequence[str], forecast: str = ""
    ) -> None:
        """The first lines of a run; `forecast` is when it will have ended, where that is known."""
        self._rehearsal(rehearsal)
        self.say(f"{name}  ->  {shown_path(folder)}", style="bold")
        if forecast:
            self.say(forecast, style="dim")
        for warning in warnings:
            self.warn(warning)

    def was_whole(self, folder: Path, of_sweep: bool) -> None:
        """A run that an earlier command measured, and its record; a sweep's stands in the sweep's table."""
        if not of_sweep:
            self.say(f"Whole before: {shown_path(folder)}. sweep.again=true measures it anew.")

    def applied(self, settings: Mapping[str, str]) -> None:
        """What was really set, by the keys that asked for it."""
        for key, setting in settings.items():
            self.say(f"{key} is now {setting}, and will be put back.")

    def opened(self, window: str, epoch: int, epochs: int, steps: int) -> None:
        verb = {"epoch": "training", "val": "evaluating"}[window]
        what = f"epoch {epoch} of {epochs}, {verb}{self._left(epochs - epoch - (window == 'val'))}"
        if window == "epoch":
            now_s = time.monotonic()
            self._opened_s.append(now_s)
            self._told_s = self._told_s or now_s
        self._progress.reset(self._task, description=what, total=steps, loss="")
        self._progress.start()
        self._progress.refresh()

    def progress(self, steps: int, loss: float | None = None) -> None:
        told = "" if loss is None else f"loss {loss:.4f}"
        self._progress.update(self._task, completed=steps, loss=told, refresh=True)

    def closed(self) -> None:
        self._progress.stop()

    def measured(self, line: Mapping[str, Any], epochs: int) -> None:
        """A window's line, where no progress is drawn: an epoch's own numbers, and how long the others will take."""
        now_s = time.monotonic()
        if self._draws or line["window"] != "epoch" or now_s - self._told_s < LINE_S:
            return
        self._told_s = now_s
        forms = {"e2e_s": "{:.3f} s", "fetch_stall_s": "{:.3f} s stalled", "energy_j": "{:.1f} J",
                 "train_loss": "loss {:.4f}", "train_accuracy": "accuracy {:.4f}"}  # fmt: skip
        known = [(form, line["metrics"].get(f"epoch/{name}")) for name, form in forms.items()]
        told = ", ".join(form.format(value) for form, value in known if value is not None)
        left = self._left(epochs - line["epoch"] - 1)
        self.say(f"epoch {line['epoch']} of {epochs}: {told}{left}")

    @property
    def _draws(self) -> bool:
        """Whether a progress line can be drawn over and over again."""
        return self.console.is_terminal and not self.console.is_dumb_terminal

    def _left(self, epochs: int) -> str:
        """How long so many epochs will take; nothing where there are none, or nothing to tell from."""
        seconds = left_s(self._opened_s, time.monotonic(), epochs)
        return f"; {about(seconds)} left" if seconds else ""

    def concluded(self, windows: Sequence[Mapping], warmup: int, outcome: Outcome, of_sweep: bool) -> None:
        """The last lines of a run: its table and how it failed; where it is shown, a sweep tells once."""
        if any(window["window"] == "epoch" for window in windows):
            self._epochs(windows, outcome.metrics, warmup)
            self._data(outcome.metrics)
            self._throughput(outcome.metrics)
            self._target(windows, outcome.metrics)
        for note in outcome.notes:
            self.warn(note)
        self.failed(outcome)
        if not of_sweep:
            self._closing([outcome])

    def failed(self, outcome: Outcome) -> None:
        if outcome.failure:
            self.say(f"{outcome.state.capitalize()}: {outcome.failure}", style="red")

    def _rehearsal(self, reasons: Sequence[str]) -> None:
        if reasons:
            self.say(f"REHEARSAL, no result of what was asked: {'; '.join(reasons)}.", style="bold yellow")

    def _epochs(self, windows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float], warmup: int) -> None:
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
            note = " in part" if row.get("partial") else " warm-up" if warming else ""
            table.add_row(f"{row['epoch']}{note}", *cells, *([scored] if judged else []))
        if any(name.startswith("steady/") for name in metrics):
            table.add_section()
            steady = [_cell(metrics, f"steady/{name}", form) for name, form in columns.values()]
            table.add_row("steady", *steady, *([""] if judged else []), style="bold")
        self._whole(table)

    def _data(self, metrics: Mapping[str, float]) -> None:
        """Where a steady epoch's samples came from, as far as that is known."""
        known = {name: metrics.get(f"steady/{name}") for name in DATA}
        told = [
            form.format(decimal(int(value)) if "bytes" in name else value)
            for name, form in DATA.items()
            if (value := known[name]) is not None and not (name == "read_bytes_per_s" and value < 1)
        ]
        if told:
            self.say(f"Data of a steady epoch: {', '.join(told)}.", style="dim")

    def _throughput(self, metrics: Mapping[str, float]) -> None:
        """What was measured between the two steps that were asked for."""
        if "throughput/samples_per_s" in metrics:
            asked = {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("throughput/")}
            self.say("Throughput of {steps:.0f} steps: {samples_per_s:.1f} samples/s.".format(**asked))

    def _target(self, windows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> None:
        """When the target was reached, by what, and what it cost; nothing where it was not, or none was set."""
        if "total/epochs_to_target" not in metrics:
            return
        epochs = int(metrics["total/epochs_to_target"])
        cost = f"{metrics['total/time_to_target_s']:.3f} s"
        if "total/energy_to_target_j" in metrics:
            cost += f" and {metrics['total/energy_to_target_j']:.1f} J"
        # An evaluation decides, where there is one; it follows its epoch.
        decided = [window["metrics"] for window in windows if window["epoch"] == epochs - 1][-1]
        scores = ", ".join(f"{name} {value:.4f}" for name, value in decided.items() if name in SCORES)
        after = f"{epochs} epoch{'s' if epochs > 1 else ''}"
        self.say(f"The target was reached after {after}, in {cost} ({scores}).", style="green")

    def sweep(self, outcomes: Sequence[Outcome]) -> None:
        """The table of a sweep: what varied, how each run ended, what it took; then a line for each failure."""
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
        self.console.print()
        self._whole(table)
        for outcome in outcomes:
            if outcome.failure:
                self.say(f"run {outcome.number} {outcome.state}: {outcome.failure}", style="red")
        self._closing(outcomes)

    def _whole(self, table: Table) -> None:
        """Prints a table as wide as it is: in a narrow terminal its lines run on, and no number is cut short."""
        unbounded = self.console.options.update(max_width=10_000)
        table.width = self.console.measure(table, options=unbounded).maximum
        self.console.print(table, crop=False)

    def _closing(self, outcomes: Sequence[Outcome]) -> None:
        """What holds for all of them: why there is no energy, where they are shown, and that they are rehearsals."""
        for reason in dict.fromkeys(outcome.no_energy for outcome in outcomes if outcome.no_energy):
            self.say(f"No measured energy: {reason}")
        for text in dict.fromkeys(outcome.unpublished for outcome in outcomes if outcome.unpublished):
            self.warn(text)
        runs = [outcome.run_link for outcome in outcomes if outcome.run_link]
        if len(runs) == 1:
            self.say(f"Run      {runs[0]}")
        for link in dict.fromkeys(outcome.compare_link for outcome in outcomes if outcome.compare_link):
            self.say(f"Compare  {link}")
            if link.startswith(LOCAL):
                self.say("         (served by `make ui`, or by `mlflow ui` in the project's root)")
        self._rehearsal(list(dict.fromkeys(reason for outcome in outcomes for reason in outcome.rehearsal)))


def _varied(outcomes: Sequence[Outcome]) -> list[str]:
    """The keys that are not the same in all of a sweep's runs."""
    typed = [dict(_pair(override) for override in outcome.overrides) for outcome in outcomes]
    keys = dict.fromkeys(key for pairs in typed for key in pairs)
    return [key for key in keys if len({pairs.get(key) for pairs in typed}) > 1]


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def _state(outcome: Outcome) -> str:
    state = f"[{STATES[outcome.state]}]{outcome.state}[/]"
    return state + (" before" if outcome.earlier else "") + (" [yellow]rehearsal[/]" if outcome.rehearsal else "")


def _cell(metrics: Mapping[str, float | None], name: str, form: str) -> str:
    value = metrics.get(name)
    return ABSENT if value is None else form.format(value)


def shown_path(path: Path) -> str:
    """A path as a person would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
