"""Tells of a sweep's folder in the terminal, and writes the stall analysis beside its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainmeter.record import write_json
from trainmeter.report import words
from trainmeter.report.rows import read
from trainmeter.report.stalls import Analysis, Incomplete
from trainmeter.report.stalls import analyses as analyses_of

if TYPE_CHECKING:
    from rich.console import Console


def analyses(folder: Path) -> list[Analysis | Incomplete]:
    """The stall analyses of a sweep's folder; empty where it is none."""
    return analyses_of(read(folder).results)


def tell(folder: Path, console: Console) -> list[Analysis | Incomplete]:
    """Prints what a sweep tells: its stall analyses, or, where there is none, its runs and what to run for one."""
    sweep = read(folder)
    told = analyses_of(sweep.results)
    if any(isinstance(analysis, Analysis) for analysis in told):
        words.show(told, console)
        write(sweep.folder, words.markdown(sweep, told), words.plain_values(told))
        words.say(console, f"Written: {folder.name}/stalls.json and stalls.md")
    else:
        words.show_grid(words.plain(sweep), console)
        words.show(told, console)
        if not told:
            words.say(console, f"No stall analysis: these are no runs of one. Run: {words.WHAT_TO_RUN}")
    for said in words.left_out(sweep):
        words.say(console, said, "yellow")
    return told


def write(folder: Path, page: str, values: list[dict]) -> None:
    """Leaves stalls.json and stalls.md in a sweep's folder, whole or not at all."""
    write_json(folder / "stalls.json", values)
    partial = folder / ".stalls.md.partial"
    partial.write_text(page, encoding="utf-8")
    partial.replace(folder / "stalls.md")
