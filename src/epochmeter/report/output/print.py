"""Print reports and the analyses of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epochmeter.config.installation import display_path, with_own_commands
from epochmeter.report.analyses.best import find_best
from epochmeter.report.build import ranked_configurations, run_analyses
from epochmeter.report.output import table
from epochmeter.report.output.files import write_page
from epochmeter.report.render import Page, page_file, page_markdown, phrase, print_markdown, render_macro, render_notes
from epochmeter.report.runs.filter import select_any
from epochmeter.report.runs.load import read

if TYPE_CHECKING:
    from rich.console import Console

    from epochmeter.report.build import Report

REPORT_PAGES = ("answer", "comparison", "gate", "footprint", "failures")
"""Pages about the whole report. If it has no others, the terminal lists its runs."""
MAX_PRINTED = 40  # runs up to which the terminal lists them


def answer_lines(folder: Path, *, is_choice: bool = True) -> list[str]:
    """Return the configurations of a sweep with the least time and the least energy, and the command of its report."""
    configurations = ranked_configurations(select_any(read(folder)).ended)
    if not configurations:
        return []
    choices = find_best(configurations)[:2] if is_choice and len(configurations) > 1 else []
    answer = " ".join(render_macro("answer.md.j2", "choice", choice, is_plain=True).strip() for choice in choices)
    return [
        *([f"Answer:  {answer}"] if answer else []),
        f"Report:  python src/report.py sweep={folder.name}  ->  {display_path(folder / 'report.html')}",
    ]


def print_analyses(folder: Path, console: Console, *, of_sources: bool = False) -> None:
    """Print the analyses of a sweep, write them to its folder, and print which runs are left out.

    Stalls are analyzed only for a sweep of data sources. If runs are missing, a hint is printed.
    """
    selection = select_any(read(folder))
    pages = [page for page in run_analyses(selection, folder) if of_sources or page.name != "stalls"]
    if not pages and not of_sources:
        return
    console.print()
    if not pages:
        print_markdown(render_macro("stalls.md.j2", "body", (), is_plain=not console.is_terminal), console)
    banner, notes = (render_notes(name, selection) for name in ("warnings", "left_out"))
    _print_lines(banner, console, "bold yellow")
    for page in pages:
        print_page(page, console)
        write_page(folder, page, page_file(page, folder.name, banner, notes))
        print_text(console, f"Written: {folder.name}/{page.name}.json and {page.name}.md")
    _print_lines(notes, console, "yellow")


def print_report(report: Report, console: Console) -> None:
    """Print the texts of a report, its runs if it has no analyses, and notes on the runs that it leaves out."""
    _print_lines(report.banner, console, "bold yellow")
    for page in report.pages:
        print_page(page, console)
    if 0 < len(report.rows) <= MAX_PRINTED and all(page.name in REPORT_PAGES for page in report.pages):
        cells = table.columns_and_rows(report.rows)
        print_markdown(table.markdown(cells, is_plain=not console.is_terminal), console)
        console.print()
    _print_lines(report.notes, console, "yellow")


def print_text(console: Console, text: str, style: str = "") -> None:
    """Print a text, wrapped in a terminal unless it contains a link."""
    from rich.markup import escape

    console.print(escape(with_own_commands(text)), style=style, soft_wrap="://" in text or not console.is_terminal)


def print_page(page: Page, console: Console) -> None:
    """Print the text of an analysis under its title."""
    print_markdown(f"## {phrase(page.name)}\n\n{page_markdown(page, is_plain=not console.is_terminal)}", console)


def _print_lines(texts: Sequence[str], console: Console, style: str = "") -> None:
    for text in texts:
        print_text(console, text, style)
