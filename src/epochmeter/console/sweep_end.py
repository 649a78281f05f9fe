"""Output at the end of a sweep: its runs, errors and notes, and at last the answer and where to see more."""

from collections.abc import Sequence

from epochmeter.config.errors import format_error
from epochmeter.console.console import Terminal, with_severity
from epochmeter.console.sweep_lines import note_lines
from epochmeter.console.tables import state_name, sweep_table
from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import Points
from epochmeter.shared.problem import Problem


def print_sweep(
    terminal: Terminal, results: Sequence[RunResult], answer: Sequence[str] = (), points: Points | None = None
) -> None:
    """Print the results of a sweep: its runs, errors and notes, and at last the answer and where to see more."""
    terminal.console.print()
    terminal.print_table(sweep_table(results))
    terminal.console.print()
    if any(state_name(result) == "skipped" for result in results):
        terminal.info("skipped: completed earlier by the same command; `sweep.again=true` measures again", style="dim")
    numbers: dict[tuple[str, Problem], list[str]] = {}
    for result in results:
        if result.failure:
            numbers.setdefault((result.state, result.failure), []).append(str(result.number))
    for (state, failure), same in numbers.items():
        runs = f"run{'s' if len(same) > 1 else ''} {', '.join(same)} {state}"
        terminal.info(format_error(failure.within(runs)), style="red")
    for note in note_lines(results):
        terminal.warn(with_severity(note, "note: "))
    points = points or Points()
    states, total = {result.state for result in results}, len(points.overrides)
    not_started = total - len(points.completed | {result.number for result in results})
    if not_started > 0:
        terminal.info(f"Not started: {not_started} of {total} runs.")
    if states not in ({"completed"}, {"failed"}):  # if all failed, their errors say what to do
        terminal.info("To resume, run the same command again: completed runs are skipped.")
    terminal.print_missing(results)
    terminal.console.print()
    for line in answer:
        terminal.info(line, style="bold" if line == answer[0] else "", wraps=not line.startswith("Report:"))
    terminal.print_places(results)
