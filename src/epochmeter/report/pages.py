"""The analyses of a report, each with the name of the template that turns it into text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Name = Literal[
    "answer", "comparison", "gate", "stalls", "scaling", "questions", "targets", "front", "differences", "trace"
]
NAMES: tuple[Name, ...] = get_args(Name)[:-1]
"""The pages of a sweep; the page of a trace belongs to one run."""


@dataclass(frozen=True)
class Page:
    """One analysis.

    Attributes:
        name: name of its template and files: `scaling` -> scaling.md.j2, scaling.json, scaling.md.
        title: heading.
        results: what the analysis returned.
        values: all numbers; None if there is no JSON file.
        numbers: the runs that it is about.
        warnings: above its text.
    """

    name: Name
    title: str
    results: Any
    values: Any = None
    numbers: Sequence[int] = ()
    warnings: Sequence[str] = ()
