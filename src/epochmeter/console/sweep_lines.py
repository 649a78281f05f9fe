"""Lines about the runs of a sweep, as functions of their results."""

import re
from collections.abc import Mapping, Sequence

from epochmeter.console.tables import state_name
from epochmeter.results.headline import headline
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import COMPLETED
from epochmeter.results.summary import group_notes

MAX_NUMBERS = 5  # of the runs that a line names
MORE_OF_A_RUN = re.compile(r" \(\d+ more with other numbers\)$")


def run_line(label: str, result: RunResult, epochs: Sequence[Mapping[str, float]] = ()) -> str:
    """Return a run of a sweep in a line: `[2/6] run 1: batch=16: 1.23 s ± 0.8 % per epoch, 53.1 J, prep-bound`.

    `epochs` has the metrics of the epochs that its mean epoch is the mean of.
    """
    state = state_name(result)
    texts = [] if state == COMPLETED else [state]
    texts += ["rehearsal"] if result.rehearsal else []
    texts += headline(result.metrics, result.bottleneck, epochs)
    return f"{label}: {', '.join(texts) or state}"


def note_lines(results: Sequence[RunResult]) -> list[str]:
    """Return the notes of all runs, each once, with the numbers of its runs; a note may have a hint in a second line.

    Of notes that differ only in their numbers, such as percentages, the first one stands for all, with its run.
    """
    hints: dict[str, str] = {}
    texts: dict[int, list[str]] = {}
    for result in results:
        for note in result.notes:
            text, line_end, hint = MORE_OF_A_RUN.sub("", note).partition("\n")
            hints.setdefault(text, line_end + hint)
            texts.setdefault(result.number, []).append(text)
    lines = []
    for group in group_notes(text for of_run in texts.values() for text in of_run):
        numbers = [number for number, of_run in texts.items() if not {*group}.isdisjoint(of_run)]
        first = next(number for number, of_run in texts.items() if group[0] in of_run)
        source = f"; numbers of run {first}" if len(group) > 1 else ""
        lines.append(f"{group[0]} ({runs_text(numbers, len(results))}{source}){hints[group[0]]}")
    return lines


def runs_text(numbers: Sequence[int], total: int) -> str:
    """Return which runs of a sweep a line is about: `run 1`, `runs 0, 2`, `all 6 runs`."""
    if len(numbers) == total > 1:
        return "both runs" if total == 2 else f"all {total} runs"
    shown = ", ".join(map(str, numbers[:MAX_NUMBERS]))
    more = f" and {len(numbers) - MAX_NUMBERS} more" if len(numbers) > MAX_NUMBERS else ""
    return f"run{'s' if len(numbers) > 1 else ''} {shown}{more}"
