"""Build a report: filter the runs, group repeats, run the analyses and specify the charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from epochmeter.report.analyses import (
    answer,
    comparison,
    failures,
    footprint,
    gate,
    questions,
    scaling,
    search_front,
    stalls,
    targets,
)
from epochmeter.report.analyses.best import ANY, Best, Criteria
from epochmeter.report.analyses.prior import read_prior
from epochmeter.report.charts.bars import energy_parts, epoch_parts
from epochmeter.report.charts.heatmap import heatmaps
from epochmeter.report.charts.lines import efficiency, epochs, power_over_time
from epochmeter.report.charts.points import Palette
from epochmeter.report.charts.scatter import energy_by_time, to_target
from epochmeter.report.charts.vega import Chart
from epochmeter.report.output import table
from epochmeter.report.pages import Page
from epochmeter.report.render import render_notes
from epochmeter.report.runs.configuration import Configuration, group_repeats, without_synthetic
from epochmeter.report.runs.costs import TIME, costs_to_target
from epochmeter.report.runs.filter import MEASURED_TO_THE_END, Selection, select, select_any, texts_of
from epochmeter.report.runs.load import DISTURBED
from epochmeter.report.runs.power import MOST_RUNS, Power, choose_runs, powers
from epochmeter.report.runs.run import Run, Sweep


@dataclass(frozen=True)
class ReportOptions:
    """Which runs a report is about, and its further analyses.

    Attributes:
        include: Kinds of runs that are left out otherwise.
        power_of: Numbers of the runs whose power is drawn; empty for the recommended ones.
        gate: Metric (`time`, `energy`) -> largest ratio to the earlier sweep, or to the baseline.
        prior: Earlier runs that predictions learn from, if any.
    """

    where: Mapping[str, Any] = field(default_factory=dict)
    include: Sequence[str] = ()
    criteria: Criteria = ANY
    power_of: Sequence[int] = ()
    gate: Mapping[str, float] = field(default_factory=dict)
    prior: Sweep | None = None


@dataclass(frozen=True)
class Report:
    """Everything that a report prints, draws and writes.

    Attributes:
        rows: Runs of the table.
        banner: Warnings above everything else.
        notes: Which runs are left out, and why.
        incomplete: Configurations that lack runs for an analysis of stalls.
    """

    title: str
    rows: Sequence[Run]
    pages: Sequence[Page]
    charts: Sequence[Chart]
    banner: Sequence[str]
    notes: Sequence[str]
    incomplete: Sequence[stalls.Incomplete]


@dataclass(frozen=True)
class Analyses:
    """The analyses of a sweep, the runs that they were made from, and configurations without a stall analysis."""

    pages: Sequence[Page]
    selection: Selection
    incomplete: Sequence[stalls.Incomplete]


def build_report(
    sweep: Sweep,
    options: ReportOptions,
    against: Sweep | None = None,
    draw: Callable[[Sequence[Chart]], None] = lambda charts: None,
) -> Report:
    """Build the report of a sweep, with its comparison with an earlier one if there is one.

    The charts are drawn while the other analyses are made.

    Raises:
        ValueError: An option is out of range, or no run matches it.
    """
    selection = select_any(sweep, options.where, options.include)
    ranked, own = ranked_configurations(selection.ended), {run.name for run in selection.ended}
    prior = read_prior(options.prior, own) if options.prior and options.criteria.predict else None
    result = answer.analyze(ranked, options.criteria, prior)
    best = result.choices if result else []
    power = powers(choose_runs(selection.ended, options.power_of, [choice.configuration for choice in best]))
    draw(charts := all_charts(selection.ended, best, power))
    analyzed = run_analyses(sweep, options.where, options.include)
    answers = {"answer": result, "gate": None if against else _baseline_checks(result, ranked, options.gate)}
    others = {
        "footprint": footprint.analyze(sweep.runs),
        "failures": failures.analyze(selection),
        "differences": table.platform_differences(selection.ended),
    }
    pages = [*_pages(answers), *_analysis_pages(analyzed, selection, result), *_pages(others)]
    report = Report(
        title=sweep.title,
        rows=selection.ended,
        pages=pages,
        charts=charts,
        banner=render_notes("warnings", selection, {run.number for run in selection.ended}),
        notes=_notes(sweep, selection, options, power),
        incomplete=analyzed.incomplete,
    )
    return _with_comparison(report, selection.runs, against, options) if against else report


def run_analyses(sweep: Sweep, where: Mapping[str, Any] | None = None, include: Sequence[str] = ()) -> Analyses:
    """Run the analyses that the runs of a sweep allow.

    Runs that are no results, such as rehearsals, are analyzed only if there is nothing else. Stalls are never analyzed
    for runs that were not measured as configured.
    """
    selection = select(sweep, where, include)
    results = stalls.analyze(selection.runs)
    incomplete = [result for result in results if isinstance(result, stalls.Incomplete)]
    is_complete = len(incomplete) < len(results)
    pages = [_page("stalls", results, selection)] if is_complete else []
    others = _others(selection, sweep.folder)
    if not others and selection.excluded:
        wider = select(sweep, where, (*include, *MEASURED_TO_THE_END))
        others = _others(wider, sweep.folder)
        selection = wider if others else selection
    return Analyses([*pages, *others], selection, [] if is_complete else incomplete)


def ranked_configurations(ended: Sequence[Run]) -> list[Configuration]:
    """Return the configurations that are ranked: none on synthetic batches, and all with a time per epoch.

    With a quality target, the time per epoch may be missing, as a target may be reached within the warm-up.
    """
    with_target = group_repeats(without_synthetic(ended))
    return with_target if costs_to_target(with_target) else group_repeats(without_synthetic(_with_time(ended)))


def all_charts(ended: Sequence[Run], best: Sequence[Best] = (), power: Sequence[Power] = ()) -> list[Chart]:
    """Return every chart for which the runs have data, in the order of the page, with labels at the best.

    Configurations on synthetic batches are in the charts of parts, but are never the best. With a quality
    target, the charts of costs per epoch are folded.
    """
    runs, ranked = _with_time(ended), ranked_configurations(ended)
    configurations, real = group_repeats(runs), group_repeats(without_synthetic(runs))
    palette, scaled = Palette.of(group_repeats(ended)), scaling.analyze(runs)
    is_to_target = bool(costs_to_target(ranked))
    targeted = to_target(group_repeats(without_synthetic(ended)), palette, best if is_to_target else ())
    # A chart of one point shows no comparison.
    per_epoch = energy_by_time(real, palette, () if is_to_target else best) if len(real) > 1 else []
    parts, grids = [*epoch_parts(configurations), *energy_parts(configurations)], heatmaps(ranked)
    charts = [
        *([*targeted, *grids, *parts] if targeted else [*per_epoch, *parts, *grids]),
        *epochs(configurations, palette),
        power_over_time(power, configurations, palette),
        efficiency(scaled.compared if scaled else [], configurations),
        *[replace(chart, is_folded=True) for chart in per_epoch if targeted],
    ]
    return [chart for chart in charts if chart]


def _with_time(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if TIME in run.metrics]


def _others(selection: Selection, folder: Path) -> list[Page]:
    """Return the analyses other than those of stalls."""
    results = {
        "targets": targets.analyze(selection.ended),
        "scaling": scaling.analyze(selection.runs),
        "questions": questions.analyze(selection.runs),
        "front": search_front.analyze(selection.ended, search_front.search_objectives(folder)),
    }
    return [_page(name, results, selection) for name, results in results.items() if results]


def _page(name: str, results: Any, selection: Selection) -> Page:
    return Page(name, results, [run.number for run in selection.ended])


def _baseline_checks(
    result: answer.Answer | None, configurations: Sequence[Configuration], bounds: Mapping[str, float]
) -> list[gate.Check] | None:
    """Return the checks of all configurations against the baseline of the same sweep."""
    if result is None or result.baseline is None or not bounds:
        return None
    baseline = result.baseline.configuration
    pairs = [(baseline, other) for other in configurations if other is not baseline]
    return gate.check_bounds(pairs, bounds, interleaved=True)


def _pages(results: Mapping[str, Any]) -> list[Page]:
    return [Page(name, result) for name, result in results.items() if result]


def _analysis_pages(analyzed: Analyses, selection: Selection, result: answer.Answer | None) -> list[Page]:
    """Return the pages of the analyses.

    A page on runs that the rest of the report leaves out starts with a warning. The page of targets does not repeat the
    best configurations if the answer names them.
    """
    reported = {run.number for run in selection.ended}
    pages = []
    for page in analyzed.pages:
        if not reported.issuperset(page.numbers):
            page = replace(page, warnings=render_notes("warnings", analyzed.selection, {*page.numbers}, False))
        if page.name == "targets" and result and result.choices[0].cost.target:
            page = replace(page, results=[replace(group, is_ranked_above=True) for group in page.results])
        pages.append(page)
    return pages


def _notes(sweep: Sweep, selection: Selection, options: ReportOptions, power: Sequence[Power]) -> list[str]:
    """Return notes on runs that are left out, on disturbed runs, and on power that is not drawn."""
    reported, with_power = {run.number for run in selection.ended}, {curve.run.number for curve in power}
    on_synthetic = len(group_repeats(selection.runs)) - len(group_repeats(without_synthetic(selection.runs)))
    where = {key: texts_of(values) for key, values in options.where.items()}
    undrawn = [number for number in options.power_of if number not in with_power]
    return [
        *render_notes("on_synthetic_batches", on_synthetic),
        *render_notes("chosen", where, selection.count - len(sweep.unreadable), len(sweep.runs)),
        *render_notes("left_out", selection, reported),
        *render_notes("disturbed", _disturbances(selection.ended)),
        *render_notes("without_power", undrawn, len(power), MOST_RUNS),
    ]


def _with_comparison(report: Report, runs: Sequence[Run], against: Sweep, options: ReportOptions) -> Report:
    """Return a report with the comparison with an earlier sweep after its answer; a common warning is shown once."""
    selection = select_any(against, options.where, options.include)
    numbers = {run.number for run in selection.ended}
    before, after, shared = _without_reused(selection.runs, runs)
    names = against.title, report.title
    compared = comparison.analyze(group_repeats(before), group_repeats(after), names)
    pages = [Page("comparison", compared)]
    if options.gate:
        pages.append(Page("gate", gate.check_bounds(compared.matched.pairs, options.gate)))
    count = len([page for page in report.pages if page.name == "answer"])
    warnings = render_notes("warnings", selection, numbers)
    return replace(
        report,
        title=" against ".join(names[::-1]),
        pages=[*report.pages[:count], *pages, *report.pages[count:]],
        banner=render_notes("of_two", report.banner, warnings, against.title),
        notes=[
            *report.notes,
            *render_notes("shared", shared),
            *render_notes("of_two", [], render_notes("left_out", selection, numbers), against.title),
        ],
    )


def _without_reused(before: Sequence[Run], after: Sequence[Run]) -> tuple[list[Run], list[Run], list[str]]:
    """Return the runs of two sweeps without those that one reuses from the other, which would show no change.

    The names of these runs are the third value.
    """
    reused = {run.name for run in (*before, *after) if run.reused}
    shared = {run.name for run in before} & {run.name for run in after} & reused
    kept_after = [run for run in after if not (run.reused and run.name in shared)]
    names = {run.name for run in kept_after}
    return [run for run in before if not (run.reused and run.name in names)], kept_after, sorted(shared)


def _disturbances(runs: Sequence[Run]) -> list[tuple[str, list[int], str]]:
    """Return each kind of disturbance with the disturbed runs, and the details of the first run."""
    by_kind = {name: [run for run in runs if name in run.disturbed] for name in DISTURBED}
    return [
        (DISTURBED[name], [run.number for run in disturbed], disturbed[0].disturbed[name])
        for name, disturbed in by_kind.items()
        if disturbed
    ]
