"""A page: what one analysis of a sweep says, for a terminal, as Markdown, and as numbers for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainmeter.report.markdown import piped
from trainmeter.report.words import Grid, say, show_grid

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Section:
    """A few sentences, the answer first, and the tables that they are read from."""

    sentences: Sequence[str]
    grids: Sequence[Grid] = ()


@dataclass(frozen=True)
class Page:
    """All that one analysis says."""

    name: str
    """That of its files: `scaling` -> scaling.json, scaling.md."""
    title: str
    sections: Sequence[Section]
    values: Any
    """All numbers, plain."""
    numbers: Sequence[int]
    """Of the runs that it tells of."""


def show(page: Page, console: Console) -> None:
    say(console, page.title, "bold underline")
    for section in page.sections:
        first, *others = section.sentences
        say(console, first, "bold")
        for other in others:
            say(console, other)
        for grid in section.grids:
            console.print()
            show_grid(grid, console)
        console.print()


def markdown(page: Page, sweep: str, above: Sequence[str] = (), below: Sequence[str] = ()) -> str:
    """The page for a sweep of that name, between what is to be said of its runs."""
    lines = [f"# {page.title}: {sweep}", "", *(line for text in above for line in (f"**{text}**", ""))]
    for section in page.sections:
        first, *others = section.sentences
        lines += [f"**{first}**", "", *(line for other in others for line in (other, ""))]
        for grid in section.grids:
            lines += [f"{grid.title}:", "", *piped(grid.columns, grid.rows), ""]
    return "\n".join([*lines, *(line for text in below for line in (text, ""))])
