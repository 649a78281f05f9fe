"""Tables, and estimates with their intervals as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from epochmeter.report.formatting import ABSENT, number
from epochmeter.report.runs.run import Sweep
from epochmeter.report.statistics import Estimate

WIDEST = 10.0
"""Multiple of its value up to which an upper bound is printed; above it, there are too few repeats."""
PLAIN = {"e2e (s)": "e2e_s", "stall (s)": "data_stall_s", "compute (s)": "compute_s", "energy (J)": "energy_j",
         "samples/s": "samples_per_s"}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A table of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def plain(sweep: Sweep) -> Grid:
    """Return a table of the runs of a sweep that has no analysis."""
    varied = sweep.varied()
    rows = []
    for row in sweep.runs:
        cells = [number(row.steady(name)) for name in PLAIN.values()]
        state = "rehearsal" if row.excluded_because and row.excluded_because.startswith("a rehearsal") else row.state
        rows.append([str(row.number), *(row.keys.get(key, "") for key in varied), state, *cells])
    rows += [[name, *("" for _ in varied), "unreadable", *(ABSENT for _ in PLAIN)] for name in sweep.unreadable]
    return Grid("Runs, means of their steady epochs", ["run", *varied, "state", *PLAIN], rows)


def plain_values(analyses: Iterable[Any]) -> list[dict[str, Any]]:
    """Return all numbers of dataclasses as JSON values; numbers that are not finite are null."""
    return [finite(asdict(analysis)) for analysis in analyses]


def interval(estimate: Estimate, reference: float, unit: str = "s") -> str:
    """Format an estimate with its unit: `5.3 s (4.9 to 5.7)`; `reference` determines the decimals."""
    return f"{number(estimate.value, reference)} {unit}{_bounds(estimate, reference)}"


def spread(estimate: Estimate, reference: float | None = None) -> str:
    """Format an estimate: `5.3 (4.9 to 5.7)`."""
    reference = estimate.value if reference is None else reference
    return f"{number(estimate.value, reference)}{_bounds(estimate, reference)}"


def _bounds(estimate: Estimate, reference: float) -> str:
    """Format an interval in parentheses, or state that it needs more repeats."""
    if estimate.low is None or estimate.high is None:
        return ""
    if estimate.low > 0 and estimate.high > WIDEST * estimate.value:
        return " (too few repeats for an interval)"
    return f" ({number(estimate.low, reference)} to {number(estimate.high, reference)})"


def times(estimate: Estimate) -> str:
    """Format a ratio: `1.90 times (1.88 to 1.92)`."""
    return interval(estimate, estimate.value, "times")


def percent(estimate: Estimate) -> str:
    """Format a fraction as a percentage: `95.0 % (94.1 to 95.9)`."""
    return interval(estimate.scaled(100), 100 * estimate.value, "%")


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, which JSON can hold."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
