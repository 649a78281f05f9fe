"""Build a report: filter the runs, group repeats, run the analyses and draw the charts."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from epochmeter.report.analyses import answer, comparison, questions, scaling, search_front, stall_page, targets
from epochmeter.report.analyses.best import Best, find_best, pareto, unmet_constraints
from epochmeter.report.analyses.epoch_breakdown import epoch_breakdowns
from epochmeter.report.analyses.next_runs import suggest_runs
from epochmeter.report.analyses.prediction import predict
from epochmeter.report.analyses.stalls import Incomplete, analyses
from epochmeter.report.charts.all_charts import all_charts
from epochmeter.report.charts.chart import Chart
from epochmeter.report.formatting import plural
from epochmeter.report.output import table
from epochmeter.report.pages import Page, Section
from epochmeter.report.runs.configuration import Configuration, group_repeats, without_synthetic
from epochmeter.report.runs.costs import costs_to_target
from epochmeter.report.runs.filter import MEASURED_TO_THE_END, Selection, select, select_any, texts_of
from epochmeter.report.runs.load import DISTURBED
from epochmeter.report.runs.power import chosen, missing_power_note, powers
from epochmeter.report.runs.run import Run, Sweep

MAX_SHARED = 5
"""Names of runs in both sweeps that a note lists."""


@dataclass(frozen=True)
class ReportOptions:
    """Which runs a report is about, and the constraints of its recommendations.

    Attributes:
        where: key -> values of the runs to keep.
        include: kinds of runs that are left out otherwise.
        eta: weight of energy in the trade-off, 0 to 1.
        max_slowdown: largest time of the frugal choice, as a multiple of the shortest.
        power_budget_w: largest mean power; None for any.
        deadline_s: largest time; None for any.
        predict: whether unmeasured configurations are predicted.
        power_of: numbers of the runs whose power is drawn; empty for the recommended ones.
    """

    where: Mapping[str, Any] = field(default_factory=dict)
    include: Sequence[str] = ()
    eta: float = 0.5
    max_slowdown: float = 1.1
    power_budget_w: float | None = None
    deadline_s: float | None = None
    predict: bool = False
    power_of: Sequence[int] = ()


@dataclass(frozen=True)
class Report:
    """Everything that a report prints, draws and writes.

    Attributes:
        title: names of the sweeps.
        rows: runs of the table.
        pages: texts of the analyses.
        charts: in the order of the page.
        banner: warnings above everything else.
        notes: which runs are left out, and why.
        hints: what to run for the analyses that are missing.
    """

    title: str
    rows: Sequence[Run]
    pages: Sequence[Page]
    charts: Sequence[Chart]
    banner: Sequence[str]
    notes: Sequence[str]
    hints: Sequence[str]


@dataclass(frozen=True)
class Analyses:
    """The analyses of a sweep.

    Attributes:
        pages: their texts.
        selection: the runs that they were made from.
        hints: what to run for the ones that lack runs.
    """

    pages: Sequence[Page]
    selection: Selection
    hints: Sequence[str]

    @property
    def numbers(self) -> set[int]:
        """The numbers of the runs that the pages are about."""
        return {number for page in self.pages for number in page.numbers}

    @property
    def runs(self) -> list[Run]:
        """The runs that the pages are about."""
        numbers = self.numbers
        return [run for run in self.selection.ended if run.number in numbers]


class ComparisonParts(NamedTuple):
    """What the comparison with another sweep adds to a report."""

    pages: Sequence[Page] = ()
    banner: Sequence[str] = ()
    notes: Sequence[str] = ()


def build_report(sweep: Sweep, options: ReportOptions, against: Sweep | None = None) -> Report:
    """Build the report of a sweep.

    Args:
        sweep: the runs.
        options: filters and constraints.
        against: an earlier sweep to compare with.

    Raises:
        ValueError: an option is out of range, or no run matches it.
    """
    analyzed = run_analyses(sweep, options.where, options.include)
    selection = select_any(sweep, options.where, options.include)
    numbers = {row.number for row in selection.ended}
    rows = {row.number: row for row in (*analyzed.runs, *selection.ended)}
    _check_numbers(options.power_of, rows)
    configurations = group_repeats(selection.runs)
    real = without_synthetic(configurations)
    to_target = without_synthetic(group_repeats(selection.ended))  # a target may be reached within the warm-up
    if by_target := bool(costs_to_target(to_target)):
        real = to_target
    best = find_best(real, options.eta, options.max_slowdown, options.power_budget_w, options.deadline_s)
    banner = selection.banner(numbers)
    power_runs = chosen([*rows.values()], options.power_of, [choice.configuration for choice in best])
    power = powers(power_runs)
    other = _comparison(selection.runs, sweep.title, against, options) if against else ComparisonParts()
    return Report(
        title=report_title(sweep, against),
        rows=selection.ended,
        pages=[
            *_answer(real, best, options),
            *other.pages,
            *_under_banners(analyzed, numbers),
            *_ran_on(selection.ended),
        ],
        charts=all_charts(configurations, [] if by_target else best, pareto(real), power),
        banner=_merge_banners(banner, other.banner, against.title) if against else banner,
        notes=[
            *_controls(len(configurations) - len(without_synthetic(configurations))),
            *_where(options.where, selection.count, sweep),
            *selection.below(numbers),
            *_disturbed(selection.ended),
            *(missing_power_note(power_runs, power) if options.power_of else []),
            *other.notes,
        ],
        hints=analyzed.hints,
    )


def report_title(sweep: Sweep, against: Sweep | None = None) -> str:
    """Return the names of the sweeps."""
    return f"{sweep.title} against {against.title}" if against else sweep.title


def run_analyses(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Analyses:
    """Run the analyses that the runs of a sweep allow.

    Runs that are no results, such as rehearsals, are analyzed only if there is nothing else. Stalls are never analyzed
    for runs that were not measured as configured.

    Args:
        sweep: the runs.
        where: key -> values of the runs to keep.
        include: kinds of runs that are left out otherwise.
    """
    selection = select(sweep, where, include)
    stalls = analyses(selection.runs)
    complete = [page] if (page := stall_page.page(stalls)) else []
    hints = [] if complete else [stall_page.incomplete(stall) for stall in stalls if isinstance(stall, Incomplete)]
    others, wider = _others(selection, sweep.folder), select(sweep, where, (*include, *MEASURED_TO_THE_END))
    if not others and len(wider.ended) > len(selection.ended):
        others = _others(wider, sweep.folder)
        selection = wider if others else selection
    return Analyses([*complete, *others], selection, hints)


def _answer(configurations: Sequence[Configuration], best: Sequence[Best], options: ReportOptions) -> list[Page]:
    """Return the recommendations, if any time is known."""
    breakdowns = epoch_breakdowns(configurations)
    result = answer.analyze(
        configurations,
        best,
        breakdowns,
        unmet_constraints(configurations, options.power_budget_w, options.deadline_s),
        suggest_runs(configurations, best, breakdowns),
        predict(configurations) if options.predict else None,
    )
    return [answer.page(result)] if result else []


def _under_banners(analyzed: Analyses, numbers: Container[int]) -> list[Page]:
    """Return the analyses; one of runs that the rest of the report leaves out starts with a warning."""
    pages = []
    for page in analyzed.pages:
        if any(number not in numbers for number in page.numbers):
            alone = [*analyzed.selection.banner(page.numbers), "The rest of the report leaves that out."]
            page = replace(page, warnings=alone)
        pages.append(page)
    return pages


def _comparison(rows: Sequence[Run], title: str, against: Sweep, options: ReportOptions) -> ComparisonParts:
    """Compare with an earlier sweep."""
    selection = select_any(against, options.where, options.include)
    numbers = {row.number for row in selection.ended}
    before, after = _without_reused(selection.runs, rows)
    page = comparison.page(group_repeats(before), group_repeats(after), (against.title, title))
    notes = [f"{against.title}: {note}" for note in selection.below(numbers)]
    return ComparisonParts([page], selection.banner(numbers), [*_shared(selection.runs, rows), *notes])


def _without_reused(before: Sequence[Run], after: Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run]]:
    """Return the runs of two sweeps without those that one reuses from the other, which would show no change."""
    of_before = {row.name for row in before}
    kept = [row for row in after if not (row.reused and row.name in of_before)]
    of_kept = {row.name for row in kept}
    return [row for row in before if not (row.reused and row.name in of_kept)], kept


def _shared(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """Return a note on the runs that one of two sweeps reuses from the other."""
    reused = {row.name for row in (*before, *after) if row.reused}
    names = sorted({row.name for row in before} & {row.name for row in after} & reused)
    if not names:
        return []
    listed = ", ".join(names[:MAX_SHARED]) + (" ..." if len(names) > MAX_SHARED else "")
    count = plural(len(names), "run")
    return [f"Not compared: {count} in both sweeps, measured once ({listed}); sweep.again=true measures all again."]


def _merge_banners(banner: Sequence[str], other: Sequence[str], title: str) -> list[str]:
    """Merge the warnings of two sweeps; a common one is shown once."""
    own = [f"Of both: {text}" if text in other else text for text in banner]
    return [*own, *(f"{title}: {text}" for text in other if text not in banner)]


def _controls(count: int) -> list[str]:
    """Return a note on configurations with synthetic batches, which are not recommended."""
    text = (
        f"Not recommended: {plural(count, 'configuration')} on synthetic batches, which show only the device's speed."
    )
    return [text] if count else []


def _disturbed(rows: Sequence[Run]) -> list[str]:
    """Return notes on disturbed runs, one per kind, with the details of the first run."""
    notes = []
    for name, meaning in DISTURBED.items():
        if runs := [row for row in rows if name in row.disturbed]:
            numbers = ", ".join(str(row.number) for row in runs)
            first = runs[0].disturbed[name].rstrip(".")
            notes.append(f"Run{'s' if len(runs) > 1 else ''} {numbers}: {meaning} ({first}).")
    return notes


def _where(where: Mapping[str, Any], count: int, sweep: Sweep) -> list[str]:
    """Return a note on the filter of the runs."""
    if not where:
        return []
    keys = ", ".join(f"{key} {' or '.join(texts_of(values))}" for key, values in where.items())
    return [f"Chosen: {count - len(sweep.unreadable)} of {len(sweep.runs)} runs: {keys}."]


def _ran_on(rows: Sequence[Run]) -> list[Page]:
    """Return a page on the hosts and the software, if they differ."""
    grid = table.platform_differences(rows)
    text = "The runs differ in hosts or software, which may explain differences between them."
    return [Page("differences", "Hosts and software", [Section([text], [grid])], None, ())] if grid else []


def _check_numbers(numbers: Iterable[int], available: Collection[int]) -> None:
    for number in numbers:
        if number not in available:
            there = ", ".join(map(str, sorted(available)[:20]))
            raise ValueError(f"report.power_of={number}: the report has no such run. It has: {there}.")


def _others(selection: Selection, folder: Path) -> list[Page]:
    """Return the analyses other than those of stalls."""
    pages = [
        scaling.page(selection.runs),
        questions.page(selection.runs),
        targets.page(selection.ended),
        search_front.page(selection.ended, folder),
    ]
    return [page for page in pages if page]
