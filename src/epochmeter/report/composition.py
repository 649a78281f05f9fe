"""A report as a whole: what the runs of a sweep tell in words, in pictures and as a table."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from epochmeter.report import table, verdict
from epochmeter.report.analyses import comparison
from epochmeter.report.analyses.best import Best, find_best, pareto, unmet_constraints
from epochmeter.report.analyses.epoch_breakdown import epoch_breakdowns
from epochmeter.report.analyses.next_runs import what_next
from epochmeter.report.analyses.prediction import predict
from epochmeter.report.charts.all_charts import all_charts
from epochmeter.report.charts.chart import Chart
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, group_repeats, without_synthetic
from epochmeter.report.runs.costs import costs_to_target
from epochmeter.report.runs.filter import select_any, texts_of
from epochmeter.report.runs.power import chosen, missing_power_note, powers
from epochmeter.report.runs.run import Run, Sweep
from epochmeter.report.tell import Told, told_of
from epochmeter.results.run_info import DISTURBED

MOST_SHARED = 5
"""Runs in both of two sweeps that are listed by name."""


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
    rows: Sequence[Run]
    pages: Sequence[Page]
    charts: Sequence[Chart]
    banner: Sequence[str]
    """What a reader must know before anything else."""
    notes: Sequence[str]
    """What is left out, and why."""
    hints: Sequence[str]
    """What it takes for the analyses that there are not."""


class Beside(NamedTuple):
    """What another sweep adds to a report."""

    pages: Sequence[Page] = ()
    banner: Sequence[str] = ()
    notes: Sequence[str] = ()


def compose(sweep: Sweep, asked: Asked, against: Sweep | None = None) -> Report:
    """The report of a sweep, and how it compares with another, `against` which it is held.

    Raises ValueError where what is asked for is out of range, or no run has it.
    """
    told, selection = told_of(sweep, asked.where, asked.include), select_any(sweep, asked.where, asked.include)
    numbers = {row.number for row in selection.ended}
    rows = {row.number: row for row in (*told.rows, *selection.ended)}
    _check_numbers(asked.power_of, rows)
    found = group_repeats(selection.runs)
    real = without_synthetic(found)
    to_target = without_synthetic(group_repeats(selection.ended))  # a target may be reached within the warm-up
    if by_target := bool(costs_to_target(to_target)):
        real = to_target
    best = find_best(real, asked.eta, asked.max_slowdown, asked.power_budget_w, asked.deadline_s)
    banner = selection.banner(numbers)
    sampled = chosen([*rows.values()], asked.power_of, [each.point for each in best])
    drawn = powers(sampled)
    other = _beside(selection.runs, sweep.title, against, asked) if against else Beside()
    return Report(
        title=titled(sweep, against),
        rows=selection.ended,
        pages=[*_answer(real, best, asked), *other.pages, *_under_banners(told, numbers), *_ran_on(selection.ended)],
        charts=all_charts(found, [] if by_target else best, pareto(real), drawn),
        banner=_of_both(banner, other.banner, against.title) if against else banner,
        notes=[
            *_controls(len(found) - len(without_synthetic(found))),
            *_where(asked.where, selection.count, sweep),
            *selection.below(numbers),
            *_disturbed(selection.ended),
            *(missing_power_note(sampled, drawn) if asked.power_of else []),
            *other.notes,
        ],
        hints=told.hints,
    )


def titled(sweep: Sweep, against: Sweep | None = None) -> str:
    return f"{sweep.title} against {against.title}" if against else sweep.title


def listed(sweep: Sweep, asked: Asked) -> Sequence[Run]:
    """The runs of a report's table: they are known before all else that it tells."""
    return select_any(sweep, asked.where, asked.include).ended


def _answer(found: Sequence[Configuration], best: Sequence[Best], asked: Asked) -> list[Page]:
    """The answer in words, where any time is known."""
    bound_by = epoch_breakdowns(found)
    page = verdict.page(
        found,
        best,
        bound_by,
        prediction=predict(found) if asked.predict else None,
        what_next=what_next(found, best, bound_by),
        notes=unmet_constraints(found, asked.power_budget_w, asked.deadline_s),
    )
    return [page] if page else []


def _under_banners(told: Told, numbers: Container[int]) -> list[Page]:
    """The analyses, those of runs that the rest of the report leaves out below the words that these are no results."""
    pages = []
    for page in told.pages:
        if any(number not in numbers for number in page.numbers):
            alone = [*told.selection.banner(page.numbers), "The rest of the report leaves that out."]
            page = replace(page, sections=[Section(alone), *page.sections])
        pages.append(page)
    return pages


def _beside(rows: Sequence[Run], title: str, against: Sweep, asked: Asked) -> Beside:
    """What changed since another sweep, and what runs of that are left out."""
    selection = select_any(against, asked.where, asked.include)
    numbers = {row.number for row in selection.ended}
    before, after = _measured_apart(selection.runs, rows)
    page = comparison.page(group_repeats(before), group_repeats(after), (against.title, title))
    notes = [f"{against.title}: {each}" for each in selection.below(numbers)]
    return Beside([page], selection.banner(numbers), [*_shared(selection.runs, rows), *notes])


def _measured_apart(before: Sequence[Run], after: Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run]]:
    """The rows of two sweeps, each run on one side only: a run that one sweep reuses of the other shows no change."""
    of_before = {row.name for row in before}
    kept = [row for row in after if not (row.reused and row.name in of_before)]
    of_kept = {row.name for row in kept}
    return [row for row in before if not (row.reused and row.name in of_kept)], kept


def _shared(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """A note on the runs that two sweeps share because one of them reuses the other's."""
    reused = {row.name for row in (*before, *after) if row.reused}
    names = sorted({row.name for row in before} & {row.name for row in after} & reused)
    if not names:
        return []
    listed = ", ".join(names[:MOST_SHARED]) + (" ..." if len(names) > MOST_SHARED else "")
    many = f"{len(names)} run{'s' if len(names) > 1 else ''}"
    return [f"Not compared: {many} in both sweeps, measured once ({listed}); sweep.again=true measures all runs again."]


def _of_both(banner: Sequence[str], other: Sequence[str], title: str) -> list[str]:
    """What a reader must know of two sweeps: once, where it is the same of both."""
    own = [f"Of both: {said}" if said in other else said for said in banner]
    return [*own, *(f"{title}: {said}" for said in other if said not in banner)]


def _controls(count: int) -> list[str]:
    """That jobs on ready batches are none to choose from: what they show is how fast the device would be."""
    jobs = f"{count} job{'s' if count > 1 else ''}"
    return [f"Not chosen from: {jobs} on ready batches, which show but how fast the device is."] if count else []


def _disturbed(rows: Sequence[Run]) -> list[str]:
    """Disturbances and the runs that had them, with the text of the first run."""
    notes = []
    for name, meaning in DISTURBED.items():
        if found := [row for row in rows if name in row.disturbed]:
            numbers = ", ".join(str(row.number) for row in found)
            first = found[0].disturbed[name].rstrip(".")
            notes.append(f"Run{'s' if len(found) > 1 else ''} {numbers}: {meaning} ({first}).")
    return notes


def _where(where: Mapping[str, Any], count: int, sweep: Sweep) -> list[str]:
    """Which runs were chosen of how many."""
    if not where:
        return []
    keys = ", ".join(f"{key} {' or '.join(texts_of(values))}" for key, values in where.items())
    return [f"Chosen: {count - len(sweep.unreadable)} of {len(sweep.runs)} runs: {keys}."]


def _ran_on(rows: Sequence[Run]) -> list[Page]:
    """In what hosts and software differ, where they do."""
    grid = table.platform_differences(rows)
    said = "The runs did not all run on and with the same: what differs between them may be that."
    return [Page("differences", "Hosts and software", [Section([said], [grid])], None, ())] if grid else []


def _check_numbers(asked: Iterable[int], known: Collection[int]) -> None:
    for number in asked:
        if number not in known:
            there = ", ".join(map(str, sorted(known)[:20]))
            raise ValueError(f"report.power_of={number}: no such run is told of. There are: {there}.")
