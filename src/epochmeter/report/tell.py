"""Tells of a sweep what its runs have to say beside each other, in the terminal and in files beside them.

What is told is chosen by what the runs are: of the three sources of samples, on several devices, with a target, of a
search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmeter.console.console import display_path
from epochmeter.report import answers, diagnosis, table, words
from epochmeter.report.analyses import scaling, search_front, targets
from epochmeter.report.analyses.best import find_best
from epochmeter.report.analyses.stalls import Incomplete, analyses
from epochmeter.report.output.render import grid_markdown, page_file, page_markdown, print_markdown
from epochmeter.report.pages import Page
from epochmeter.report.runs.configuration import group_repeats, without_synthetic
from epochmeter.report.runs.filter import MEASURED_TO_THE_END, Selection, select, select_any
from epochmeter.report.runs.load import read
from epochmeter.report.runs.run import Run, Sweep
from epochmeter.shared.atomic_files import write_atomically, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from epochmeter.report.composition import Report

NO_STALLS = (
    "No stall analysis: it takes completed runs of data_source=synthetic, cached and storage. "
    f"Run: {diagnosis.WHAT_TO_RUN}"
)
BESIDE = ("answer", "comparison", "differences")
"""Pages of a report that are no analysis of some of its runs: the terminal lists those below them."""
MOST_PRINTED = 40
"""Runs that the terminal lists; the table that is left beside them has all."""


@dataclass(frozen=True)
class Told:
    """What the runs of a sweep say beside each other."""

    pages: Sequence[Page]
    selection: Selection
    """What the pages were chosen from."""
    hints: Sequence[str]
    """What it takes for the analyses that were begun."""

    @property
    def numbers(self) -> set[int]:
        """Of the runs that a page tells of."""
        return {number for page in self.pages for number in page.numbers}

    @property
    def rows(self) -> list[Run]:
        """The same runs."""
        numbers = self.numbers
        return [row for row in self.selection.ended if row.number in numbers]


def answer(folder: Path, *, is_choice: bool = True) -> list[str]:
    """The answer of a sweep in one line, if it has one, and the command of its report; empty without a result.

    Args:
        folder: the sweep's folder.
        is_choice: whether the sweep compares configurations to choose from, and not data sources.
    """
    found = without_synthetic(group_repeats(select_any(read(folder)).runs))
    if not found:
        return []
    best = {choice.name: choice.sentence for choice in find_best(found)} if is_choice and len(found) > 1 else {}
    said = " ".join(best[name] for name in ("fastest", "least_energy") if name in best)
    return [
        *([f"Answer:  {said}"] if said else []),
        f"Report:  python src/report.py sweep={folder.name}  ->  {display_path(folder / 'report.html')}",
    ]


def tell(folder: Path, console: Console) -> None:
    """Prints what a sweep tells: its pages, or, where there is none, its runs and what to run for one."""
    sweep = read(folder)
    told = told_of(sweep)
    if not told.pages:
        print_markdown(grid_markdown(words.plain(sweep)), console)
        for hint in told.hints or [NO_STALLS]:
            words.say(console, hint)
    show(told, sweep.folder, console)


def tell_pages(folder: Path, console: Console) -> None:
    """Prints what a sweep says beside its stalls, if it says anything."""
    sweep = read(folder)
    told = told_of(sweep)
    others = [page for page in told.pages if page.name != diagnosis.NAME]
    if others:
        console.print()
        show(Told(others, told.selection, ()), sweep.folder, console)


def show_report(report: Report, console: Console) -> None:
    """Prints a report: its words, its runs where no page tells of them, and what runs are left out."""
    for said in report.banner:
        words.say(console, said, "bold yellow")
    for page in report.pages:
        print_markdown(f"## {page.title}\n\n{page_markdown(page)}", console)
    if report.rows and all(page.name in BESIDE for page in report.pages):
        print_markdown(grid_markdown(table.grid(report.rows[:MOST_PRINTED])), console)
        if (more := len(report.rows) - MOST_PRINTED) > 0:
            words.say(console, f"{more} more are in report.csv.")
        console.print()
    for said in (*report.hints, *report.notes):
        words.say(console, said, "yellow" if said in report.notes else "")


def told_of(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Told:
    """What the runs say that are no rehearsals or the like, which are told of, too, where there is nothing else.

    Where stalls come from is never told of what was not measured as asked.
    """
    selection = select(sweep, where, include)
    found = analyses(selection.runs)
    whole = [page] if (page := diagnosis.page(found)) else []
    hints = [] if whole else [diagnosis.incomplete(told) for told in found if isinstance(told, Incomplete)]
    others, wider = _others(selection, sweep.folder), select(sweep, where, (*include, *MEASURED_TO_THE_END))
    if not others and len(wider.ended) > len(selection.ended):
        others = _others(wider, sweep.folder)
        selection = wider if others else selection
    return Told([*whole, *others], selection, hints)


def show(told: Told, folder: Path, console: Console) -> list[Path]:
    """Prints pages and leaves them in a folder; then what runs are left out of all that was told."""
    banner, below = told.selection.banner(told.numbers), told.selection.below(told.numbers)
    for said in banner:
        words.say(console, said, "bold yellow")
    written = []
    for page in told.pages:
        print_markdown(f"## {page.title}\n\n{page_markdown(page)}", console)
        written += write(folder, page.name, page_file(page, folder.name, banner, below), page.values)
        words.say(console, f"Written: {folder.name}/{page.name}.json and {page.name}.md")
    for said in below:
        words.say(console, said, "yellow")
    return written


def write(folder: Path, name: str, page: str, values: Any) -> list[Path]:
    """Leaves a page and its numbers, where it has any, in a sweep's folder, each whole or not at all."""
    numbers, text = folder / f"{name}.json", folder / f"{name}.md"
    if values is not None:
        write_json(numbers, values)
    write_atomically(text, lambda file: file.write(page))
    return [numbers, text] if values is not None else [text]


def _others(selection: Selection, folder: Path) -> list[Page]:
    told = [
        scaling.page(selection.runs),
        answers.page(selection.runs),
        targets.page(selection.ended),
        search_front.page(selection.ended, folder),
    ]
    return [page for page in told if page]
