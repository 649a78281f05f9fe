"""Build a report: filter the runs, group repeats, run the analyses and draw the charts."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from epochmeter.report.analyses import answer, comparison, gate, questions, scaling, search_front, stalls, targets
from epochmeter.report.analyses.best import Best, find_best, pareto, unmet_constraints
from epochmeter.report.analyses.bottleneck import epoch_bottlenecks
from epochmeter.report.analyses.matching import matching
from epochmeter.report.analyses.next_runs import suggest_runs
from epochmeter.report.analyses.prediction import predict
from epochmeter.report.charts.all_charts import all_charts
from epochmeter.report.charts.chart import Chart
from epochmeter.report.output import table
from epochmeter.report.output.render import render_macro, render_notes
from epochmeter.report.pages import Page
from epochmeter.report.runs.configuration import Configuration, group_repeats, without_synthetic
from epochmeter.report.runs.costs import costs_to_target
from epochmeter.report.runs.filter import MEASURED_TO_THE_END, Selection, select, select_any, texts_of
from epochmeter.report.runs.load import DISTURBED
from epochmeter.report.runs.power import MOST_RUNS, choose_runs, powers
from epochmeter.report.runs.run import Run, Sweep


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
        baseline: values of the configuration that the best are compared with, or `defaults`.
        gate: metric (`time`, `energy`) -> largest ratio to the earlier sweep, or to the baseline.
    """

    where: Mapping[str, Any] = field(default_factory=dict)
    include: Sequence[str] = ()
    eta: float = 0.5
    max_slowdown: float = 1.1
    power_budget_w: float | None = None
    deadline_s: float | None = None
    predict: bool = False
    power_of: Sequence[int] = ()
    baseline: Mapping[str, Any] | str | None = None
    gate: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Everything that a report prints, draws and writes.

    Attributes:
        title: names of the sweeps.
        rows: runs of the table, which `write_csv` writes to a file.
        banner: warnings above everything else.
        notes: which runs are left out, and why.
        hints: commands for the missing analyses.
    """

    title: str
    rows: Sequence[Run]
    write_csv: Callable[[TextIO], None]
    pages: Sequence[Page]
    charts: Sequence[Chart]
    banner: Sequence[str]
    notes: Sequence[str]
    hints: Sequence[str]


@dataclass(frozen=True)
class Analyses:
    """The analyses of a sweep, the runs that they were made from, and commands for the missing analyses."""

    pages: Sequence[Page]
    selection: Selection
    hints: Sequence[str]


def build_report(
    sweep: Sweep,
    options: ReportOptions,
    against: Sweep | None = None,
    draw: Callable[[Sequence[Chart]], None] = lambda charts: None,
) -> Report:
    """Build the report of a sweep, with its comparison with an earlier one if there is one.

    The charts come first, to be drawn while the rest is built.

    Raises:
        ValueError: an option is out of range, or no run matches it.
    """
    selection = select_any(sweep, options.where, options.include)
    write_csv = table.begin_csv(selection.ended)
    numbers = {run.number for run in selection.ended}
    configurations = group_repeats(selection.runs)
    real = without_synthetic(configurations)
    to_target = without_synthetic(group_repeats(selection.ended))  # a target may be reached within the warm-up
    if by_target := bool(costs_to_target(to_target)):
        real = to_target
    best = find_best(real, options.eta, options.max_slowdown, options.power_budget_w, options.deadline_s)
    power_runs = choose_runs(selection.ended, options.power_of, [choice.configuration for choice in best])
    power = powers(power_runs)
    draw(charts := all_charts(configurations, [] if by_target else best, pareto(real), power))
    analyzed = run_analyses(sweep, options.where, options.include)
    undrawn = [run.number for run in power_runs if run.number not in {curve.row.number for curve in power}]
    where = {key: texts_of(values) for key, values in options.where.items()}
    answered = _answer(real, best, options)
    checked = _baseline_gate(answered, real, options.gate) if options.gate and not against else None
    pages = [answered, checked, *_under_banners(analyzed, numbers), _differences(selection.ended)]
    report = Report(
        title=sweep.title,
        rows=selection.ended,
        write_csv=write_csv,
        pages=[page for page in pages if page],
        charts=charts,
        banner=render_notes("warnings", selection, numbers),
        notes=[
            *render_notes("on_synthetic_batches", len(configurations) - len(without_synthetic(configurations))),
            *render_notes("chosen", where, selection.count - len(sweep.unreadable), len(sweep.runs)),
            *render_notes("left_out", selection, numbers),
            *render_notes("disturbed", _disturbances(selection.ended)),
            *render_notes("without_power", undrawn if options.power_of else [], len(power), MOST_RUNS),
        ],
        hints=analyzed.hints,
    )
    return _with_comparison(report, selection.runs, against, options) if against else report


def run_analyses(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Analyses:
    """Run the analyses that the runs of a sweep allow.

    Runs that are no results, such as rehearsals, are analyzed only if there is nothing else. Stalls are never analyzed
    for runs that were not measured as configured.
    """
    selection = select(sweep, where, include)
    results = stalls.analyze(selection.runs)
    complete = [page] if (page := stalls.page(results)) else []
    hints = [] if complete else [render_macro("stalls.md.j2", "incomplete", result) for result in results]
    others, wider = _others(selection, sweep.folder), select(sweep, where, (*include, *MEASURED_TO_THE_END))
    if not others and len(wider.ended) > len(selection.ended):
        others = _others(wider, sweep.folder)
        selection = wider if others else selection
    return Analyses([*complete, *others], selection, hints)


def _answer(configurations: Sequence[Configuration], best: Sequence[Best], options: ReportOptions) -> Page | None:
    """Return the recommendations, if any time is known."""
    bottlenecks = epoch_bottlenecks(configurations)
    result = answer.analyze(
        configurations,
        best,
        bottlenecks,
        unmet_constraints(configurations, options.power_budget_w, options.deadline_s),
        suggest_runs(configurations, best, bottlenecks),
        predict(configurations) if options.predict else None,
        options.baseline,
    )
    return answer.page(result) if result else None


def _baseline_gate(
    answered: Page | None, configurations: Sequence[Configuration], bounds: Mapping[str, float]
) -> Page | None:
    """Return the checks of all configurations against the baseline of the same sweep."""
    baseline = answered.results.baseline if answered else None
    if baseline is None:
        return None
    others = [configuration for configuration in configurations if configuration is not baseline.configuration]
    return gate.page([(baseline.configuration, other) for other in others], bounds, interleaved=True)


def _under_banners(analyzed: Analyses, numbers: Container[int]) -> list[Page]:
    """Return the analyses; one of runs that the rest of the report leaves out starts with a warning."""
    pages = []
    for page in analyzed.pages:
        if any(number not in numbers for number in page.numbers):
            page = replace(page, warnings=render_notes("warnings", analyzed.selection, {*page.numbers}, False))
        pages.append(page)
    return pages


def _with_comparison(report: Report, runs: Sequence[Run], against: Sweep, options: ReportOptions) -> Report:
    """Return a report with the comparison with an earlier sweep after its answer; a common warning is shown once."""
    selection = select_any(against, options.where, options.include)
    numbers = {run.number for run in selection.ended}
    before, after = _without_reused(selection.runs, runs)
    configurations = group_repeats(before), group_repeats(after)
    pages = [comparison.page(*configurations, (against.title, report.title))]
    if options.gate:
        pages.append(gate.page(matching(*configurations).pairs, options.gate))
    count = len([page for page in report.pages if page.name == "answer"])
    warnings = render_notes("warnings", selection, numbers)
    return replace(
        report,
        title=f"{report.title} against {against.title}",
        pages=[*report.pages[:count], *pages, *report.pages[count:]],
        banner=render_notes("of_two", report.banner, warnings, against.title),
        notes=[
            *report.notes,
            *render_notes("shared", _shared(selection.runs, runs)),
            *render_notes("of_two", [], render_notes("left_out", selection, numbers), against.title),
        ],
    )


def _without_reused(before: Sequence[Run], after: Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run]]:
    """Return the runs of two sweeps without those that one reuses from the other, which would show no change."""
    of_before = {run.name for run in before}
    kept = [run for run in after if not (run.reused and run.name in of_before)]
    of_kept = {run.name for run in kept}
    return [run for run in before if not (run.reused and run.name in of_kept)], kept


def _shared(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """Return the names of the runs that one of two sweeps reuses from the other."""
    reused = {run.name for run in (*before, *after) if run.reused}
    return sorted({run.name for run in before} & {run.name for run in after} & reused)


def _disturbances(runs: Sequence[Run]) -> list[tuple[str, list[int], str]]:
    """Return each kind of disturbance with the disturbed runs, and the details of the first run."""
    by_kind = {name: [run for run in runs if name in run.disturbed] for name in DISTURBED}
    return [
        (DISTURBED[name], [run.number for run in disturbed], disturbed[0].disturbed[name])
        for name, disturbed in by_kind.items()
        if disturbed
    ]


def _differences(runs: Sequence[Run]) -> Page | None:
    """Return a page on the hosts and the software, if they differ."""
    results = table.platform_differences(runs)
    return Page("differences", "Hosts and software", results=results) if results else None


def _others(selection: Selection, folder: Path) -> list[Page]:
    """Return the analyses other than those of stalls."""
    pages = [
        scaling.page(selection.runs),
        questions.page(selection.runs),
        targets.page(selection.ended),
        search_front.page(selection.ended, folder),
    ]
    return [page for page in pages if page]
