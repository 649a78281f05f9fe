"""Tells of a sweep's folder what its runs have to say, in the terminal and in files beside them.

What is told is chosen by what the runs are: of the three supplies of samples, on several devices, with a target.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmeter.record import write_json
from trainmeter.report import answers, pages, scaling, targets, words
from trainmeter.report.records import read
from trainmeter.report.rows import Row, Sweep
from trainmeter.report.stalls import Analysis, Incomplete
from trainmeter.report.stalls import analyses as analyses_of

if TYPE_CHECKING:
    from rich.console import Console


def analyses(folder: Path) -> list[Analysis | Incomplete]:
    """The stall analyses of a sweep's folder; empty where it is none."""
    return analyses_of(read(folder).results)


def pages_of(sweep: Sweep) -> list[pages.Page]:
    """What its runs say beside their stalls; rehearsals are told of, too, where there is nothing else."""
    return _told(sweep.results, sweep.ended) or _told(
        [*sweep.results, *sweep.rehearsed], [*sweep.ended, *sweep.rehearsed]
    )


def tell(folder: Path, console: Console) -> list[Analysis | Incomplete]:
    """Prints what a sweep tells: its analyses, or, where there is none, its runs and what to run for one."""
    sweep = read(folder)
    stalls, others = analyses_of(sweep.results), pages_of(sweep)
    if any(isinstance(analysis, Analysis) for analysis in stalls):
        words.show(stalls, console)
        write(folder, "stalls", words.markdown(sweep, stalls), words.plain_values(stalls))
        words.say(console, f"Written: {folder.name}/stalls.json and stalls.md")
    elif stalls or not others:
        words.show_grid(words.plain(sweep), console)
        words.show(stalls, console)
    if not stalls and not others:
        words.say(console, f"No stall analysis: these are no runs of one. Run: {words.WHAT_TO_RUN}")
    _show(sweep, others, console)
    return stalls


def tell_pages(folder: Path, console: Console) -> None:
    """Prints what a sweep says beside its stalls, if it says anything."""
    sweep = read(folder)
    others = pages_of(sweep)
    if others:
        console.print()
        _show(sweep, others, console)


def write(folder: Path, name: str, page: str, values: Any) -> None:
    """Leaves a page and its numbers in a sweep's folder, each whole or not at all."""
    write_json(folder / f"{name}.json", values)
    partial = folder / f".{name}.md.partial"
    partial.write_text(page, encoding="utf-8")
    partial.replace(folder / f"{name}.md")


def _show(sweep: Sweep, others: Sequence[pages.Page], console: Console) -> None:
    """Prints pages and leaves them in the sweep's folder; then what runs are left out of all that was told."""
    told = {number for page in others for number in page.numbers}
    banner, left_out = _banner(sweep, told), words.left_out(sweep, told)
    for said in banner:
        words.say(console, said, "bold yellow")
    for page in others:
        pages.show(page, console)
        text = pages.markdown(page, sweep.folder.name, above=banner, below=left_out)
        write(sweep.folder, page.name, text, page.values)
        words.say(console, f"Written: {sweep.folder.name}/{page.name}.json and {page.name}.md")
    for said in left_out:
        words.say(console, said, "yellow")


def _told(results: Sequence[Row], ended: Sequence[Row]) -> list[pages.Page]:
    told = [scaling.page(results), answers.page(results), targets.page(ended)]
    return [page for page in told if page]


def _banner(sweep: Sweep, told: Container[int]) -> list[str]:
    """What stands above pages that tell of rehearsals."""
    reasons = dict.fromkeys(why for row in sweep.rehearsed if row.number in told for why in row.rehearsal)
    return [f"REHEARSAL, no result of what was asked: {'; '.join(reasons)}."] if reasons else []
