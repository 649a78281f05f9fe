"""A page: what one analysis of a sweep says, for a terminal, as Markdown, and as numbers for machines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from epochmeter.report.markdown import piped, plain
from epochmeter.report.words import Grid, say, show_grid

if TYPE_CHECKING:
    from rich.console import Console

Name = Literal["answer", "comparison", "stalls", "scaling", "questions", "targets", "front", "differences"]
NAMES: tuple[Name, ...] = get_args(Name)
"""Of all pages that there are."""
INTERVAL = re.compile(r"\((-?[\d.]+ to -?[\d.]+)\)")
"""As estimates are told: `(8.5 to 13.5)`."""
COMMAND = re.compile(r"(python src/\w+\.py(?: -m)?(?: [\w./+~]+=(?:\.\.\.|\S*[^\s.;,:])| '[^']*')*)")
"""What is to be typed: without the sentence's full stop."""


@dataclass(frozen=True)
class Section:
    """A few sentences, the answer first, and the tables that they are read from."""

    sentences: Sequence[str]
    grids: Sequence[Grid] = ()


@dataclass(frozen=True)
class Page:
    """All that one analysis says."""

    name: Name
    """That of its files: `scaling` -> scaling.json, scaling.md."""
    title: str
    sections: Sequence[Section]
    values: Any
    """All numbers, plain."""
    numbers: Sequence[int]
    """Of the runs that it tells of."""

    @property
    def told(self) -> Sequence[Section]:
        """Its sections, of which the first interval is called what it is."""
        sections = list(self.sections)
        for place, section in enumerate(sections):
            for index, sentence in enumerate(section.sentences):
                if INTERVAL.search(sentence):
                    named = INTERVAL.sub(r"(95 % interval: \1)", sentence, count=1)
                    sentences = [*section.sentences[:index], named, *section.sentences[index + 1 :]]
                    return [*sections[:place], replace(section, sentences=sentences), *sections[place + 1 :]]
        return sections


def show(page: Page, console: Console) -> None:
    say(console, page.title, "bold underline")
    for section in page.told:
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
    banner = [f"**{plain(text)}**" for text in above]
    lines = [f"# {plain(f'{page.title}: {sweep}')}", "", *(line for text in banner for line in (text, ""))]
    for section in page.told:
        first, *others = map(_marked, section.sentences)
        lines += [f"**{first}**", "", *(line for other in others for line in (other, ""))]
        for grid in section.grids:
            lines += [f"{plain(grid.title)}:", "", *piped(grid.columns, grid.rows), ""]
    return "\n".join([*lines, *(line for text in below for line in (plain(text), ""))])


def _marked(sentence: str) -> str:
    """A sentence in Markdown, with what is to be typed as code."""
    parts = re.split(COMMAND, sentence)
    return "".join(f"`{part}`" if odd % 2 and "`" not in part else _plain(part) for odd, part in enumerate(parts))


def _plain(part: str) -> str:
    """A part of a sentence, with the spaces around it."""
    return re.sub(r"\S(?:.*\S)?", lambda found: plain(found[0]), part, flags=re.DOTALL)
