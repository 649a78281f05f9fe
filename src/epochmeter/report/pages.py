"""The analyses of a report, each with the name of the template that turns it into text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

TITLES = {
    "answer": "The answer",
    "comparison": "Comparison",
    "gate": "Gate",
    "stalls": "Stalls",
    "scaling": "Scaling",
    "questions": "Questions",
    "targets": "Time and energy to target",
    "front": "Search",
    "footprint": "Carbon footprint and cost",
    "differences": "Hosts and software",
    "failures": "Failures",
    "trace": "Trace analysis",
}
"""Name of a page -> its heading; the last one is a page of one run."""


@dataclass(frozen=True)
class Page:
    """One analysis.

    Attributes:
        name: Name of its template and files: `scaling` -> scaling.md.j2, scaling.json, scaling.md.
        numbers: The runs that it was made from.
    """

    name: str
    results: Any
    numbers: Sequence[int] = ()
    warnings: Sequence[str] = ()

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def values(self) -> Any:
        """All numbers, for the JSON file; None if there is no such file."""
        return _values(self.results)


def _values(results: Any) -> Any:
    if isinstance(results, list) and is_dataclass(results[0]):
        return [_values(result) for result in results]
    if hasattr(results, "values"):
        return results.values
    return asdict(results) if is_dataclass(results) and not isinstance(results, type) else None
