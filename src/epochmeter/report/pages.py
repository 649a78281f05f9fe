"""The text of one analysis: sentences and tables for people, and all numbers for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from epochmeter.report.words import Grid

Name = Literal["answer", "comparison", "stalls", "scaling", "questions", "targets", "front", "differences"]
NAMES: tuple[Name, ...] = get_args(Name)
NUMBER = re.compile(r"[-+]?\d[\d.,]*( .*)?")


@dataclass(frozen=True)
class Section:
    """A few sentences, the result first, and their tables."""

    sentences: Sequence[str]
    grids: Sequence[Grid] = ()


@dataclass(frozen=True)
class Page:
    """One analysis, which a template of its name turns into text.

    Attributes:
        name: name of its template and files: `scaling` -> scaling.md.j2, scaling.json, scaling.md.
        title: heading.
        results: what the analysis returned.
        values: all numbers; None if there is no JSON file.
        numbers: the runs that it is about.
        warnings: above its text.
        sections, summary: the text, of an analysis that has no template yet.
    """

    name: Name
    title: str
    sections: Sequence[Section] = ()
    values: Any = None
    numbers: Sequence[int] = ()
    summary: Sequence[str] = ()
    results: Any = None
    warnings: Sequence[str] = ()


def number_columns(grid: Grid) -> list[str]:
    """Return the columns of a table that hold numbers."""
    return [
        column for index, column in enumerate(grid.columns) if any(NUMBER.fullmatch(row[index]) for row in grid.rows)
    ]
