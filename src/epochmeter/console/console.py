"""What a person sees of a run and of a sweep in the terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from epochmeter.config import errors
from epochmeter.config.job import ROOT
from epochmeter.config.secrets import redacted
from epochmeter.console import tables
from epochmeter.console.eta import about, left_s
from epochmeter.console.progress import Stage, draws
from epochmeter.machine.host import commit
from epochmeter.results.run_result import Outcome
from epochmeter.shared.record import Record
from epochmeter.tracking.views import LOCAL

LINE_S = 1.0
_warned_of: set[str] = set()
"""Git commits of reused runs for which a warning was printed."""
SERVED = "(served by `make ui`, or by `mlflow ui` in the project's root)"
"""What to do for a link to this machine's own MLflow."""


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
            disable=not draws(self.console),
        )
        self._stage: Stage | None = None
        self._opened_s: list[float] = []
        """When each epoch opened."""
        self._told_s = 0.0
        self._task = self._progress.add_task("", total=None, loss="")
        logging.getLogger("epochmeter").handlers = [Voice(self)]

    def stage(self, what: str = "") -> None:
        """Begin a stage that may take long; without a text, end the running one."""
        if self._stage:
            self._stage.end()
        self._stage = Stage(self.console) if what else None
        if self._stage:
            self._stage.begin(what)

    def say(self, text: str, style: str = "") -> None:
        """Prints a text, if there is any, wrapped at words where a person reads it; links, and all in a file, stay in
        one piece."""
        if not text:
            return
        text = redacted(text)
        self.console.print(escape(text), style=style, soft_wrap="://" in text or not self.console.is_terminal)

    def warn(self, text: str) -> None:
        self.say(text, style="yellow")

    def begun(
        self, name: str, folder: Path, rehearsal: Sequence[str], warnings: Sequence[str], forecast: str = ""
    ) -> None:
        """The first lines of a run; `forecast` is when it will have ended, where that is known."""
        self.stage()
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

    def reused(self, name: str, record: Record) -> None:
        """Print that a completed run is reused, with a warning per git commit if that differs from the current one.

        Args:
            name: the run's name.
            record: the completed run.
        """
        self.say(f"{name}: reused from {shown_path(record.folder)}")
        then, now = commit_of(record), commit(ROOT)
        if then and now and then != now and then not in _warned_of:
            _warned_of.add(then)
            self.warn(
                f"warning: reused runs were measured at git commit {then[:12]}, this is {now[:12]}; "
                "a run's identity does not cover code\n  hint: sweep.again=true measures them again"
            )

    def applied(self, settings: Mapping[str, str]) -> None:
        """What was really set, by the keys that asked for it."""
        for key, setting in settings.items():
            self.say(f"{key} is now {setting}, and will be put back.")

    def opened(self, window: str, epoch: int, epochs: int, steps: int) -> None:
        self.stage()
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
        self.stage()
        self._progress.stop()

    def measured(self, line: Mapping[str, Any], epochs: int) -> None:
        """A window's line, where no progress is drawn: an epoch's own numbers, and how long the others will take."""
        now_s = time.monotonic()
        if draws(self.console) or line["window"] != "epoch" or now_s - self._told_s < LINE_S:
            return
        self._told_s = now_s
        forms = {"e2e_s": "{:.3f} s", "fetch_stall_s": "{:.3f} s stalled", "energy_j": "{:.1f} J",
                 "train_loss": "loss {:.4f}", "train_accuracy": "accuracy {:.4f}"}  # fmt: skip
        known = [(form, line["metrics"].get(f"epoch/{name}")) for name, form in forms.items()]
        told = ", ".join(form.format(value) for form, value in known if value is not None)
        left = self._left(epochs - line["epoch"] - 1)
        self.say(f"epoch {line['epoch']} of {epochs}: {told}{left}")

    def _left(self, epochs: int) -> str:
        """How long so many epochs will take; nothing where there are none, or nothing to tell from."""
        seconds = left_s(self._opened_s, time.monotonic(), epochs)
        return f"; {about(seconds)} left" if seconds else ""

    def concluded(self, windows: Sequence[Mapping], job: Mapping[str, Any], outcome: Outcome, of_sweep: bool) -> None:
        """The last lines of a run: its table and how it failed; where it is shown, a sweep tells once."""
        if any(window["window"] == "epoch" for window in windows):
            self._whole(tables.epochs(windows, outcome.metrics, job["warmup_epochs"]))
            self.say(tables.bottleneck(outcome.metrics, in_memory=job["dataset"]["layout"] != "files"))
            self.say(tables.data(outcome.metrics), style="dim")
            self.say(tables.throughput(outcome.metrics))
            self.say(tables.target(windows, outcome.metrics), style="green")
        for note in outcome.notes:
            self.warn(note)
        self.failed(outcome)
        if not of_sweep:
            self._closing([outcome])

    def failed(self, outcome: Outcome) -> None:
        if outcome.failure:
            self.say(f"{outcome.state.capitalize()}: {outcome.failure}", style="red")

    def refused(self, outcome: Outcome) -> None:
        """Print the error of a run that did not begin; a sweep's table has it too."""
        if outcome.failure:
            self.closed()
            print(errors.line(redacted(outcome.failure)), file=sys.stderr, flush=True)

    def _rehearsal(self, reasons: Sequence[str]) -> None:
        if reasons:
            self.say(f"REHEARSAL, no result of what was asked: {'; '.join(reasons)}.", style="bold yellow")

    def sweep(self, outcomes: Sequence[Outcome], answer: Sequence[str] = ()) -> None:
        """The table of a sweep: what varied, how each run ended, what it took; then failures, the answer and links."""
        self.console.print()
        self._whole(tables.sweep(outcomes))
        alike: dict[tuple[str, str], list[int]] = {}
        for outcome in outcomes:
            if outcome.failure:
                alike.setdefault((outcome.state, outcome.failure), []).append(outcome.number)
        for (state, failure), (first, *more) in alike.items():
            runs = f"runs {', '.join(map(str, [first, *more]))}" if more else f"run {first}"
            self.say(f"{runs} {state}: {failure}", style="red")
        if any(outcome.state != "whole" for outcome in outcomes):
            self.say("To resume, run the same command again: completed runs are skipped.")
        for line in answer:
            self.say(line)
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
        links = [outcome.compare_link for outcome in outcomes if outcome.compare_link and not outcome.rehearsal]
        for link in dict.fromkeys(links or [outcome.compare_link for outcome in outcomes if outcome.compare_link]):
            self.say(f"Compare  {link}")
            if link.startswith(LOCAL):
                self.say(f"         {SERVED}")
        self._rehearsal(list(dict.fromkeys(reason for outcome in outcomes for reason in outcome.rehearsal)))


def commit_of(record: Record) -> str | None:
    """The git commit at which a run was measured; None if unknown."""
    with suppress(OSError, ValueError, AttributeError):
        commit: str | None = record.host().get("git", {}).get("commit")
        return commit
    return None


def shown_path(path: Path) -> str:
    """A path as a person would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
