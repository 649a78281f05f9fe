"""The analyses of a report, each with the name of the template that turns it into text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

SWEEP_PAGES = (
    "answer", "comparison", "gate", "stalls", "scaling", "questions", "targets", "front", "footprint", "differences",
    "failures",
)  # fmt: skip
"""Names of the pages of a sweep."""


@dataclass(frozen=True)
class Page:
    """One analysis, by the name of its template, its files and its heading: scaling.md.j2, scaling.json, scaling.md."""

    name: str
    results: Any

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
