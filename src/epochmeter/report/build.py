"""Build a report: filter the runs, group repeats, run the analyses and specify the charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from epochmeter.config.secrets import redact
from epochmeter.report.analyses import (
    answer,
    comparison,
    failures,
    footprint,
    gate,
    questions,
    scaling,
    stalls,
    targets,
)
from epochmeter.report.analyses.best import ANY, Best, Criteria
from epochmeter.report.analyses.next_runs import command_of
from epochmeter.report.analyses.prior import read_prior
from epochmeter.report.charts.bars import energy_parts, epoch_parts
from epochmeter.report.charts.changes import changes
from epochmeter.report.charts.heatmap import heatmaps
from epochmeter.report.charts.lines import efficiency, epochs, power_over_time
from epochmeter.report.charts.points import Palette
from epochmeter.report.charts.scatter import energy_by_time, to_target
from epochmeter.report.charts.vega import Chart
from epochmeter.report.render import Page, page_part, render_notes
from epochmeter.report.runs.configuration import SINGLE, Configuration, group_repeats, varied, without_synthetic
from epochmeter.report.runs.costs import TIME, costs_to_target
from epochmeter.report.runs.data_source import candidates
from epochmeter.report.runs.filter import Selection, select_any, texts_of
from epochmeter.report.runs.run import COMPLETED, REHEARSALS, Run, Sweep

COMMON_KEYS, COMMON_FACTS = ("model", "dataset", "strategy", "device"), ("host", "board", "GPU", "CPU", "torch")
"""Keys and facts of the platform that introduce a report if they are the same in all runs."""


@dataclass(frozen=True)
class Report:
    """Everything that a report prints, draws and writes.

    Attributes:
        about: Number of runs, and what they have in common: model, dataset, machine.
        runs: Those of the table.
        banner: Warnings.
    """

    title: str
    about: str
    runs: Sequence[Run]
    pages: Sequence[Page]
    charts: Sequence[Chart]
    banner: Sequence[str]
    notes: Sequence[str]


def build_report(
    sweep: Sweep,
    against: Sweep | None = None,
    *,
    where: Mapping[str, Any] | None = None,
    include: Sequence[str] = (),
    criteria: Criteria = ANY,
    bounds: Mapping[str, float] | None = None,
    prior: Sweep | None = None,
    draw: Callable[[Sequence[Chart]], None] = lambda charts: None,
) -> Report:
    """Build the report of a sweep; ValueError if an option is out of range, or no run matches it.

    Args:
        against: An earlier sweep to compare with.
        bounds: Metric (`time`, `energy`) -> largest ratio to the earlier sweep, or to the baseline.
        prior: Earlier runs that predictions learn from.
        draw: Starts to draw the charts, while the other analyses are made.
    """
    selection = select_any(sweep, where, include)
    earlier = select_any(against, where, include) if against else None
    ranked, own = ranked_configurations(selection.ended), {run.name for run in selection.ended}
    workloads = read_prior(prior, own) if prior and criteria.predict else None
    failed = [run for run in selection.excluded if run.state != COMPLETED]
    ranked_runs = {run for entry in ranked for run in entry.runs}
    excluded = group_repeats([*failed, *(run for run in selection.runs if run not in ranked_runs)])
    # Data of a rehearsal may be on another device.
    stalled = stalls.analyze([run for run in selection.runs if REHEARSALS in include or not run.rehearsal])
    result = answer.analyze(ranked, criteria, workloads, excluded, stalls.verdicts(stalled))
    title, banner, notes = sweep.title, render_notes("warnings", selection), _notes(sweep, selection, where or {})
    compared, pairs = None, None
    if against and earlier:
        before, after, shared = _unshared(earlier.runs, selection.runs)
        compared = comparison.analyze(before, after, (against.title, title))
        pairs, title = compared.pairs, f"{title} against {against.title}"
        banner += [f"{against.title}: {text}" for text in render_notes("warnings", earlier)]
        notes += render_notes("shared", shared)
        notes += [f"{against.title}: {text}" for text in render_notes("left_out", earlier)]
    elif result and result.baseline:
        baseline = result.baseline.configuration
        pairs = [(baseline, other) for other in ranked if other is not baseline]
    charts = changes(compared) if compared else []
    draw(charts := [*charts, *all_charts(selection.ended, result.choices if result else [])])
    checks = gate.check_bounds(pairs, bounds, interleaved=not against) if bounds and pairs is not None else None
    is_ranked = bool(result and result.choices[0].cost.target)
    analyses = {
        "comparison": compared,
        "gate": checks,
        "answer": result,
        "stalls": stalled,
        "targets": [replace(group, is_ranked_above=is_ranked) for group in targets.analyze(selection.ended)],
        "scaling": scaling.analyze(selection.runs),
        "questions": questions.analyze(selection.runs),
        "footprint": footprint.analyze(sweep.runs),
        "failures": failures.analyze(selection),
    }
    compared_runs = {run for pair in pairs or () for entry in pair for run in entry.runs}
    measured = {"answer": ranked_runs, "comparison": compared_runs, "gate": compared_runs}
    warnings = {name: " ".join(render_notes("disturbed", [*runs])) for name, runs in measured.items()}
    pages = [Page(name, results, warnings.get(name, "")) for name, results in analyses.items() if results]
    pages.sort(key=lambda page: not page_part(page, "opening"))  # the subject of an experiment comes first
    return Report(title, _about(selection.ended or selection.excluded), selection.ended, pages, charts, banner, notes)


def ranked_configurations(ended: Sequence[Run]) -> list[Configuration]:
    """Return the configurations to choose from, with a time per epoch.

    With a quality target, the time per epoch may be missing, as a target may be reached within the warm-up.
    """
    with_target = group_repeats(candidates(ended))
    return with_target if costs_to_target(with_target) else group_repeats(candidates(_with_time(ended)))


def all_charts(ended: Sequence[Run], best: Sequence[Best] = ()) -> list[Chart]:
    """Return the charts of the page in order, with labels at the best; to a target, costs per epoch are folded."""
    runs, ranked, palette = _with_time(ended), ranked_configurations(ended), Palette.of(group_repeats(ended))
    configurations, real = group_repeats(runs), group_repeats(without_synthetic(runs))
    is_to_target = bool(costs_to_target(ranked))
    targeted = to_target(group_repeats(without_synthetic(ended)), palette, best if is_to_target else ())
    # A chart of one point shows no comparison.
    per_epoch = energy_by_time(real, palette, () if is_to_target else best) if len(real) > 1 else []
    parts, grids = [*epoch_parts(configurations), *energy_parts(configurations)], heatmaps(ranked)
    return [
        *([*targeted, *grids, *parts] if targeted else [*per_epoch, *parts, *grids]),
        *epochs(configurations, palette),
        *power_over_time([choice.configuration for choice in best], palette),
        *efficiency(scaling.analyze(runs), configurations),
        *[replace(chart, is_folded=True) for chart in per_epoch if targeted],
    ]


def _with_time(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if TIME in run.metrics]


def _about(runs: Sequence[Run]) -> str:
    """Return the number of runs with their common model, dataset and machine, as a sentence."""
    configurations = group_repeats(runs)
    if not configurations:
        return ""
    first, keys = configurations[0], [key for key in COMMON_KEYS if key not in varied(configurations)]
    shared = [f"{key} {first.value(key)}" for key in keys if key != "strategy" or first.strategy != SINGLE]
    facts = {
        name: value
        for name in COMMON_FACTS
        if (value := runs[0].platform.get(name)) and all(run.platform.get(name) == value for run in runs)
    }
    what = redact(" ".join(command_of(first))) or ", ".join(shared)
    return " ".join(render_notes("about", len(runs), len(configurations), what, facts))


def _notes(sweep: Sweep, selection: Selection, where: Mapping[str, Any]) -> list[str]:
    """Return notes on runs that are left out or disturbed, and on differences between hosts and software."""
    platforms = {id(run.platform): run.platform for run in selection.ended}.values()  # most runs of a sweep share one
    kinds = dict.fromkeys(kind for platform in platforms for kind in platform)
    if len({run.value("power_limit") for run in selection.ended}) > 1:
        kinds.pop("power mode", None)  # a key of these runs
    runs = selection.runs
    return render_notes(
        "notes",
        selection,
        [len(group_repeats(some)) for some in (runs, without_synthetic(runs), candidates(runs))],
        {key: texts_of(values) for key, values in where.items()},
        (selection.count - len(sweep.unreadable), len(sweep.runs)),
        [kind for kind in kinds if len({platform.get(kind) for platform in platforms}) > 1],
        scaling.without_partner(runs),
    )


def _unshared(
    before: Sequence[Run], after: Sequence[Run]
) -> tuple[list[Configuration], list[Configuration], list[str]]:
    """Return the configurations of both sweeps without shared runs, and the names of these.

    Runs that one sweep reuses from the other are in both, and would show no change.
    """
    shared = {run.name for run in before} & {run.name for run in after}
    first, second = (group_repeats([run for run in side if run.name not in shared]) for side in (before, after))
    return first, second, sorted(shared)
