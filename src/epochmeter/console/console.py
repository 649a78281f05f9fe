"""Messages, progress and results of runs and sweeps in the terminal.

What only progress and results need is imported late: a person waits for the first messages, and then for the process.
"""

import logging
import math
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from epochmeter.config.errors import format_error, record_refusal
from epochmeter.config.installation import UI_ADDRESS, display_path, with_own_commands
from epochmeter.config.secrets import redact
from epochmeter.console.plain import PlainConsole, wrap
from epochmeter.results.metrics import shown_in
from epochmeter.results.quantities import span
from epochmeter.results.run_result import RunResult
from epochmeter.shared.problem import Problem, format_problem
from epochmeter.shared.record import WORKER_LOG

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.status import Status

    from epochmeter.console.tables import ResultTable

PROGRESS_LINE_INTERVAL_S, SWEEP_LINE_INTERVAL_S = 1.0, 60.0
"""Minimum time between the lines of two epochs in a file, in seconds; in a sweep, whose runs have a line each."""
OTHER_COLUMNS = 60  # width of the progress line without the forecast
SEVERITIES = ("error: ", "warning: ", "note: ")
UI_HINT = "(served by `make ui`, or by `mlflow ui` in the project's root)"  # for links to MLflow on this machine
_already_printed: set[str] = set()  # texts that this process prints once: commits of reused runs, reasons for no energy


class Terminal(logging.Handler):
    """Prints the progress and the results of runs, and logged warnings.

    An interactive terminal has a progress line, a file one line per epoch; a measured script has stdout for itself.
    """

    def __init__(self, *, of_script: bool = False) -> None:
        super().__init__()
        self._of_script = of_script
        self.console = PlainConsole(stderr=of_script)
        self._stage: Status | None = None
        self._task: TaskID | None = None  # the run in the progress line; its unit is an epoch
        self._epoch = self._steps = 0  # the epoch that is training, and the number of steps of the open window
        self._printed_s, self._currency = 0.0, ""
        self.label, self._eta = "", ""  # of the open run of a sweep, if its runs have a line each
        logging.getLogger("epochmeter").handlers = [self]

    @cached_property
    def _progress(self) -> "Progress":
        """The progress line, drawn when the training process reports progress: a thread would compete for the cores."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        return Progress(
            TextColumn("{task.description}"),
            TextColumn("step {task.fields[steps]}"),
            BarColumn(),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),  # else cut off first
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[forecast]}"),
            console=self.console,
            auto_refresh=False,
            transient=True,
            speed_estimate_period=math.inf,  # epochs may be long
            get_time=time.monotonic,
            disable=not self.console.is_interactive,
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Print a logged warning, from any thread, above the progress line."""
        self.warn(with_severity(record.getMessage(), "warning: "))

    def stage(self, what: str) -> None:
        """Show a stage that may take long, in place of an earlier one, in an interactive terminal."""
        self.end_stage()
        if self.console.is_interactive and not self._of_script:
            from rich.status import Status

            # Seldom refreshed, as the work may run on the same cores.
            self._stage = Status(what, console=self.console, refresh_per_second=1)
            self._stage.start()

    def end_stage(self) -> None:
        if self._stage:
            self._stage.stop()
        self._stage = None

    def info(self, text: str, style: str = "", *, wraps: bool = True) -> None:
        """Print a text. A terminal wraps it at words, except lines with a link; a command is copied as one line."""
        for line in with_own_commands(redact(text)).splitlines():
            is_wrapped = wraps and self.console.is_terminal and "://" not in line
            for row in wrap(line, self.console.width) if is_wrapped else [line]:
                self.console.print(escape(row), style=style, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.info(text, style="yellow")

    def run_started(
        self, name: str, folder: Path, rehearsal: Sequence[str], warnings: Sequence[str], forecast: str = ""
    ) -> None:
        """Print the first lines of a run: why it is a rehearsal, if it is, and when it will end, if that is known."""
        self.end_stage()
        self.print_rehearsal(rehearsal)
        self.info(f"{name}  ->  {display_path(folder)}", style="bold")
        self.info(forecast, style="dim")
        for warning in warnings:
            self.warn(with_severity(warning, "warning: "))

    def sweep_run_started(
        self, label: str, rehearsal: Sequence[str], warnings: Sequence[str], forecast: str = ""
    ) -> None:
        """Begin a run of a sweep that has one line, at its end; what concerns all runs is printed once."""
        self.end_stage()
        self.label, self._eta = label, forecast
        for text in [*rehearsal_text(rehearsal), *(with_severity(warning, "warning: ") for warning in warnings)]:
            self.info_once(text, style="yellow")

    def reused(self, name: str, folder: Path, commit: str | None, current: str | None) -> None:
        """Print that a completed run is reused; warn once per git commit that is not the current one."""
        self.info(f"{name}: reused from {display_path(folder)}")
        if commit and current and commit != current and commit not in _already_printed:
            _already_printed.add(commit)
            text = f"reused runs were measured at git commit {commit[:12]}, the current one is {current[:12]}"
            hint = "if the change affects the measurement, measure them again with `sweep.again=true`"
            self.warn(format_problem(Problem(text, hint), "warning"))

    def info_once(self, text: str, style: str = "dim") -> None:
        """Print a text about the machine, once for all runs of a sweep."""
        if text not in _already_printed:
            _already_printed.add(text)
            self.info(text, style=style)

    def no_energy(self, reason: str) -> None:
        """Print before training that energy will not be measured."""
        self.info_once(f"Energy will not be measured: {reason.removesuffix('.')}.")

    def window_opened(self, window: str, epoch: int, epochs: int, steps: int) -> None:
        """Begin the progress line of a window, `epoch` or `val`; epochs count from 0."""
        self.end_stage()
        if self._of_script:
            return
        if self._task is None:
            eta = self._fitting(self._eta, self._eta.partition(" (")[0])
            self._task = self._progress.add_task("", total=epochs, completed=epoch, steps="", loss="", forecast=eta)
            self._printed_s = time.monotonic()
        self._epoch, self._steps = epoch, steps
        description = (
            f"{_place(self.label)}epoch {epoch + 1}/{epochs} {'training' if window == 'epoch' else 'evaluating'}"
        )
        self._progress.update(self._task, description=description, steps=f"0/{steps}", loss="")
        self._progress.start()
        self._progress.refresh()

    def forecast(self, metrics: Mapping[str, float], currency: str | None = None) -> None:
        """Show the forecast of the open run's totals in the progress line, which in a sweep has that of the sweep."""
        from epochmeter.console.sentences import forecast_text

        self._currency = currency or ""
        if self._task is not None and not self.label:
            text = forecast_text(metrics, currency)
            shown = self._fitting(text, text.partition(",")[0])
            self._progress.update(self._task, forecast=shown, refresh=True)

    def _fitting(self, *texts: str) -> str:
        """Return the first text for which the progress line has room; empty if it has none."""
        room = max(0, self.console.width - OTHER_COLUMNS - len(_place(self.label)))
        return next((text for text in texts if len(text) <= room), "")

    def progress(self, steps: int, loss: float | None = None) -> None:
        """Update the progress line: the steps so far, and the loss if `log_loss=true`."""
        if self._task is None:
            return
        text = "" if loss is None else f"loss {loss:.4f}"
        # An evaluation follows its epoch, which is complete by then.
        completed = max(self._progress.tasks[0].completed, self._epoch + steps / self._steps)
        steps_text = f"{steps}/{self._steps}"
        self._progress.update(self._task, completed=completed, steps=steps_text, loss=text, refresh=True)

    def loss(self, step: int, loss: float) -> None:
        """Print the loss of a step of the open epoch (`log_every=`); steps count from 1."""
        if self._task is not None:
            epochs = self._progress.tasks[0].total or 0
            place = f"{_place(self.label)}epoch {self._epoch + 1}/{epochs:.0f}, step {step}/{self._steps}"
            self.info(f"{place}: loss {loss:.4f}")

    def window_closed(self) -> None:
        self.end_stage()
        if self._task is not None:
            self._progress.stop()

    def window_measured(self, line: Mapping[str, Any], epochs: int) -> None:
        """Print an epoch's metrics and the remaining time of the run in one line, if there is no progress line."""
        if line["window"] != "epoch" or self._task is None:
            return
        self._progress.update(self._task, completed=line["epoch"] + 1)
        interval_s = SWEEP_LINE_INTERVAL_S if self.label else PROGRESS_LINE_INTERVAL_S
        if self.console.is_interactive or time.monotonic() - self._printed_s < interval_s:
            return
        from epochmeter.console.sentences import forecast_text
        from epochmeter.console.tables import titled

        self._printed_s = time.monotonic()
        metrics = line["metrics"]
        values = ", ".join(titled(name, metrics[name]) for name in shown_in("line") if name in metrics)
        remaining_s = self._progress.tasks[0].time_remaining
        remaining = f"{span(remaining_s)} left" if remaining_s else ""
        forecast = forecast_text(line["metrics"], self._currency) if line["epoch"] + 1 < epochs else ""
        text = "; ".join(filter(None, (values, remaining, forecast)))
        self.info(f"{_place(self.label)}epoch {line['epoch'] + 1}/{epochs}: {text}")

    def failed(self, result: RunResult) -> None:
        """Print why a run failed or was stopped, if it was; a stopped sweep ends, and names its run."""
        if result.failure and not (result.of_sweep and result.state == "killed"):
            failure = (
                result.failure._replace(hint="") if result.of_sweep else result.failure
            )  # its end prints each once
            if result.state == "killed":
                message = failure.message[:1].upper() + failure.message[1:]
                self.info(format_problem(failure._replace(message=message)), style="red")
            else:
                self.info(format_error(failure), style="red")
            if result.folder and failure.where.file == WORKER_LOG:
                self.info(f"Traceback: {display_path(result.folder / WORKER_LOG)}", style="red")

    def refused(self, error: Exception) -> None:
        """Print the error of a run that did not begin; a sweep's table has it too."""
        self.window_closed()
        record_refusal(error)
        print(format_error(error), file=sys.stderr, flush=True)

    def print_rehearsal(self, reasons: Sequence[str]) -> None:
        for text in rehearsal_text(reasons):
            self.info(text, style="bold yellow")

    def print_table(self, table: "ResultTable") -> None:
        """Print a table at its full width, so that no number is cut; in a terminal that is narrower, row by row."""
        unbounded = self.console.options.update(max_width=10_000)
        table.width = self.console.measure(table, options=unbounded).maximum
        if self.console.is_terminal and table.width > self.console.width:
            from epochmeter.console.stacked import stack

            for line in stack(table, self.console.width):
                self.info(line)
        else:
            self.console.print_table(table)

    def print_missing(self, results: Sequence[RunResult]) -> None:
        """Print once for all runs why energy was not measured, or why results are not in MLflow or another tracker."""
        from epochmeter.console.sweep_lines import runs_text

        lacking: dict[tuple[Problem, str], list[int]] = {}
        for result in results:
            if result.no_energy:
                lacking.setdefault((result.no_energy, result.requested_meter), []).append(result.number)
        for (reason, meter), numbers in lacking.items():
            some = f" of {runs_text(numbers, len(results))}" if len(numbers) < len(results) else ""
            if meter:
                what = "was not measured" if meter == "none" else "is not measured, but estimated"
                self.info(f"Energy{some} {what} (meter={meter}).", style="dim")
            else:
                self.warn(format_error(reason.within(f"energy{some} was not measured"), "warning"))
        errors = (text for result in results for text in (result.publish_error, *result.export_errors) if text)
        for text in dict.fromkeys(errors):
            self.warn(text)

    def print_places(self, results: Sequence[RunResult]) -> None:
        """Print the folders and the addresses of all runs, and that they are rehearsals."""
        folders = [result.folder for result in results if result.folder]
        views = [result.run_link for result in results if result.run_link]
        shown = folders if len(folders) == 1 else [folder.parent for folder in folders]
        lines = [f"Results: {display_path(folder)}" for folder in shown]
        lines += [f"View:    {link}" for link in views if len(views) == 1]
        lines += [f"Compare: {result.compare_link}" for result in results if result.compare_link]
        exports = [(name, where) for result in results for name, where in result.exports.items() if where]
        shared = [export for export in exports if len(results) == 1 or exports.count(export) > 1]
        lines += [f"In {name}: {where}" for name, where in shared]
        for line in dict.fromkeys(lines):
            self.info(line.replace(UI_ADDRESS, f"make ui, then {UI_ADDRESS}", 1))
        self.print_rehearsal(list(dict.fromkeys(reason for result in results for reason in result.rehearsal)))


def with_severity(text: str, severity: str) -> str:
    """Return a message that begins with its severity, or with the given one if it has none."""
    return text if text.startswith(SEVERITIES) else severity + text


def rehearsal_text(reasons: Sequence[str]) -> list[str]:
    """Return the sentence on settings that a run did not apply; none without reasons."""
    return [f"REHEARSAL, not a result of the requested configuration: {'; '.join(reasons)}."] if reasons else []


def _place(label: str) -> str:
    """Return the place of a run in its sweep, such as `[2/6] `; empty for other runs."""
    return f"{label.partition(' ')[0]} " if label else ""
