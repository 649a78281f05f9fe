"""What an analysis says, as sentences and tables: for a terminal, for a page, and for machines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epochmeter.report.formatting import ABSENT, number
from epochmeter.report.runs.run import Sweep
from epochmeter.report.statistics import Estimate

WIDEST = 10.0
"""Times the value: an interval that reaches further up says only that there are too few repeats."""
PLAIN = {"e2e s": "e2e_s", "stall s": "data_stall_s", "compute s": "compute_s", "energy J": "energy_j",
         "samples/s": "samples_per_s"}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A table as texts: a title, its columns, its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def plain(sweep: Sweep) -> Grid:
    """The runs of a sweep that is no stall experiment."""
    varied = sweep.varied()
    rows = []
    for row in sweep.runs:
        cells = [number(row.steady(name)) for name in PLAIN.values()]
        state = "rehearsal" if row.excluded_because and row.excluded_because.startswith("a rehearsal") else row.state
        rows.append([str(row.number), *(row.keys.get(key, "") for key in varied), state, *cells])
    rows += [[name, *("" for _ in varied), "unreadable", *(ABSENT for _ in PLAIN)] for name in sweep.unreadable]
    return Grid("Runs, means of their steady epochs", ["run", *varied, "state", *PLAIN], rows)


def plain_values(told: Iterable[Any]) -> list[dict[str, Any]]:
    """All numbers, as JSON holds them: what is not known, or without limit, is null."""
    return [finite(asdict(analysis)) for analysis in told]


def seconds(value: float) -> str:
    return f"{number(value)} s"


def interval(told: Estimate, beside: float, unit: str = "s") -> str:
    """`5.3 s (4.9 to 5.7)`."""
    return f"{number(told.value, beside)} {unit}{_bounds(told, beside)}"


def spread(told: Estimate, beside: float | None = None) -> str:
    """`5.3 (4.9 to 5.7)`."""
    beside = told.value if beside is None else beside
    return f"{number(told.value, beside)}{_bounds(told, beside)}"


def _bounds(told: Estimate, beside: float) -> str:
    """The interval in parentheses; the need of more repeats in place of an upper bound of many times the value."""
    if told.low is None or told.high is None:
        return ""
    if told.low > 0 and told.high > WIDEST * told.value:
        return " (too few repeats for an interval)"
    return f" ({number(told.low, beside)} to {number(told.high, beside)})"


def times(told: Estimate) -> str:
    """`1.90 times (1.88 to 1.92)`."""
    return interval(told, told.value, "times")


def percent(told: Estimate) -> str:
    """Of a share: `95.0 % (94.1 to 95.9)`."""
    return interval(told.scaled(100), 100 * told.value, "%")


def megabytes(size: float | None) -> str:
    return ABSENT if size is None else number(1e-6 * size)


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
