"""A report as a whole: what the runs of a sweep tell in words, in pictures and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainmeter.report import comparison, table, verdict
from trainmeter.report.advice import what_next
from trainmeter.report.bounds import bounds
from trainmeter.report.charts import charts
from trainmeter.report.choices import Choice, choices, pareto, unmet
from trainmeter.report.comparison import compare
from trainmeter.report.figures import Chart
from trainmeter.report.pages import Page, Section
from trainmeter.report.points import Point, points
from trainmeter.report.powers import chosen, powers
from trainmeter.report.prediction import predict
from trainmeter.report.rows import Row, Sweep
from trainmeter.report.selection import select_any
from trainmeter.report.tell import told_of

DIFFERENCES = "differences"


@dataclass(frozen=True)
class Asked:
    """What is asked of the runs: those that a report tells of, and by what the best of them are chosen."""

    where: Mapping[str, Any] = field(default_factory=dict)
    include: Sequence[str] = ()
    eta: float = 0.5
    max_slowdown: float = 1.1
    power_budget_w: float | None = None
    deadline_s: float | None = None
    predict: bool = False
    power_of: Sequence[int] = ()
    """Numbers of the runs whose power over time is drawn; empty: of those that were chosen."""


@dataclass(frozen=True)
class Report:
    """All that is told, before it is printed, drawn and written."""

    title: str
    rows: Sequence[Row]
    pages: Sequence[Page]
    charts: Sequence[Chart]
    banner: Sequence[str]
    """What a reader must know before anything else."""
    notes: Sequence[str]
    """What is left out, and why."""
    hints: Sequence[str]
    """What it takes for the analyses that there are not."""


def compose(sweep: Sweep, asked: Asked, against: Sweep | None = None) -> Report:
    """The report of a sweep, and how it compares with another, `against` which it is held.

    Raises ValueError where what is asked for is out of range, or no run has it.
    """
    told, selection = told_of(sweep, asked.where, asked.include), select_any(sweep, asked.where, asked.include)
    numbers = {row.number for row in selection.ended} | told.numbers
    _check_numbers(asked.power_of, numbers)
    found = points(selection.rows)
    before = points(select_any(against, asked.where, asked.include).rows) if against else []
    best = choices(found, asked.eta, asked.max_slowdown, asked.power_budget_w, asked.deadline_s)
    drawn = powers(chosen(found, asked.power_of, [choice.point for choice in best]))
    beside = comparison.page(before, found, (against.title, sweep.title)) if against else None
    return Report(
        title=f"{sweep.title} against {against.title}" if against else sweep.title,
        rows=selection.ended,
        pages=[
            page
            for page in (answer(found, best, before, asked), beside, *told.pages, *_ran_on(selection.ended))
            if page
        ],
        charts=charts(found, best, pareto(found), drawn),
        banner=selection.banner(numbers) or told.selection.banner(told.numbers),
        notes=selection.below(numbers),
        hints=told.hints,
    )


def answer(found: Sequence[Point], best: Sequence[Choice], before: Sequence[Point], asked: Asked) -> Page | None:
    """The answer in words; None where no time is known."""
    bound_by = bounds(found)
    return verdict.page(
        found,
        best,
        bound_by,
        compare(before, found) if before else [],
        predict(found) if asked.predict else None,
        what_next(found, best, bound_by),
        unmet(found, asked.power_budget_w, asked.deadline_s),
    )


def _ran_on(rows: Sequence[Row]) -> list[Page]:
    """In what hosts and software differ, where they do."""
    grid = table.differences(rows)
    said = "The runs did not all run on and with the same: what differs between them may be that."
    return [Page(DIFFERENCES, "Hosts and software", [Section([said], [grid])], None, ())] if grid else []


def _check_numbers(asked: Iterable[int], known: set[int]) -> None:
    for number in asked:
        if number not in known:
            there = ", ".join(map(str, sorted(known)[:20]))
            raise ValueError(f"report.power_of={number}: no such run is told of. There are: {there}.")
