"""Build a report: filter the runs, group repeats, run the analyses and specify the charts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from epochmeter.config.secrets import redact
from epochmeter.report.analyses import (
    answer,
    comparison,
    failures,
    footprint,
    gate,
    outcome,
    questions,
    scaling,
    stalls,
    targets,
)
from epochmeter.report.analyses.best import ANY, Best, Criteria
from epochmeter.report.analyses.next_runs import command_of
from epochmeter.report.analyses.prior import read_prior
from epochmeter.report.analyses.scaling import Scaling
from epochmeter.report.charts.bars import compute_phases, energy_parts, epoch_parts, run_parts
from epochmeter.report.charts.changes import changes
from epochmeter.report.charts.heatmap import heatmaps
from epochmeter.report.charts.lines import efficiency, epochs, power_over_time
from epochmeter.report.charts.points import Palette
from epochmeter.report.charts.scatter import energy_by_time, to_target
from epochmeter.report.charts.vega import Chart
from epochmeter.report.render import Page, page_part, render_notes, sweep_pages
from epochmeter.report.runs.configuration import SINGLE, Configuration, group_repeats, varied
from epochmeter.report.runs.filter import select_any, texts_of
from epochmeter.report.runs.run import REHEARSALS, Run, Sweep
from epochmeter.report.subject import Subject, subject_of

COMMON_KEYS, COMMON_FACTS = ("model", "dataset", "strategy", "device"), ("host", "board", "GPU", "CPU", "torch")
"""Keys and facts of the platform that introduce a report if they are the same in all runs."""
WORKLOAD_KEYS = ("model", "dataset")
MAX_HEADING_KEYS = 4


@dataclass(frozen=True)
class Report:
    """Everything that a report prints, draws and writes.

    Attributes:
        about: Number of runs, and what they have in common: model, dataset, machine.
        runs: Those of the table.
        banner: Warnings.
        heading: What was trained, and which keys differ: `lenet on digits: batch x storage`. Empty: the title.
    """

    title: str
    about: str
    runs: Sequence[Run]
    pages: Sequence[Page]
    charts: Sequence[Chart]
    banner: Sequence[str]
    notes: Sequence[str]
    heading: str = ""


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
    subject = subject_of(select_any(sweep, where, include))
    earlier = subject_of(select_any(against, where, include)) if against else None
    selection = subject.selection
    workloads = read_prior(prior, {run.name for run in selection.ended}) if prior and criteria.predict else None
    # Data of a rehearsal may be on another device.
    stalled = stalls.analyze([run for run in selection.runs if REHEARSALS in include or not run.rehearsal])
    failed = failures.analyze(selection)
    ended = outcome.analyze(selection, failed)
    result = answer.analyze(subject.ranked, criteria, workloads, subject.not_ranked, stalls.verdicts(stalled), ended)
    scaled = scaling.analyze(subject.timed)
    title, banner, notes = sweep.title, render_notes("warnings", selection), _notes(sweep, subject, scaled, where or {})
    compared, pairs = None, None
    if against and earlier:
        before, after, shared = _unshared(earlier.selection.runs, selection.runs)
        compared = comparison.analyze(before, after, (against.title, title))
        pairs, title = compared.pairs, f"{title} against {against.title}"
        banner += [f"{against.title}: {text}" for text in render_notes("warnings", earlier.selection)]
        notes += render_notes("shared", shared)
        for macro in ("left_out", "energy_doubts"):
            notes += [f"{against.title}: {text}" for text in render_notes(macro, earlier.selection)]
    elif result and result.baseline:
        baseline = result.baseline.configuration
        pairs = [(baseline, other) for other in subject.ranked if other is not baseline]
    charts = [*(changes(compared) if compared else []), *all_charts(subject, scaled, result.choices if result else [])]
    draw(charts)
    checks = gate.check_bounds(pairs, bounds, interleaved=not against) if bounds and pairs is not None else None
    is_ranked = bool(result and result.choices[0].cost.target)
    analyses: dict[str, object] = {
        "comparison": compared,
        "gate": checks,
        "answer": result or (outcome.NoAnswer(ended) if ended.total and not subject.timed else None),
        "stalls": stalled,
        "targets": [replace(group, is_ranked_above=is_ranked) for group in targets.analyze(selection.ended)],
        "scaling": scaled,
        "questions": questions.analyze(subject.timed, scaled),
    }
    last = {"footprint": footprint.analyze(sweep.runs), "failures": failed}
    analyses |= {**analyze_runs(selection.runs, without=[*analyses, *last]), **last}
    warnings = _warnings(subject.ranked, [*chain.from_iterable(pairs or ())], bounds or {})
    pages = [Page(name, results, warnings.get(name, "")) for name, results in analyses.items() if results]
    pages.sort(key=lambda page: not page_part(page, "opening"))  # the subject of an experiment comes first
    shown = subject.configurations or group_repeats(selection.excluded)
    return Report(title, _about(shown), selection.ended, pages, charts, banner, notes, _heading(shown))


def _warnings(
    ranked: Sequence[Configuration], compared: Sequence[Configuration], bounds: Mapping[str, float]
) -> dict[str, str]:
    """Return what makes the verdicts of pages doubtful, by page: disturbed runs, and energies that do not hold."""
    verdicts = {"answer": (ranked, True), "comparison": (compared, True), "gate": (compared, "energy" in bounds)}
    return {
        name: " ".join(render_notes("disturbed", _runs_of(configurations), has_energy))
        for name, (configurations, has_energy) in verdicts.items()
    }


def _runs_of(configurations: Iterable[Configuration]) -> list[Run]:
    """Return the runs of configurations, each once."""
    return [*dict.fromkeys(run for configuration in configurations for run in configuration.runs)]


def analyze_runs(runs: Sequence[Run], without: Sequence[str]) -> dict[str, object]:
    """Return the results of the analyses that need the runs only: all pages, without those of these names."""
    names = [name for name in sweep_pages() if name not in without]
    return {name: import_module(f"epochmeter.report.analyses.{name}").analyze(runs) for name in names}


def all_charts(subject: Subject, scaled: Sequence[Scaling] = (), best: Sequence[Best] = ()) -> list[Chart]:
    """Return the charts of the page in order, with labels at the best; to a target, costs per epoch are folded."""
    palette = Palette.of(subject.configurations)
    targeted = to_target(subject.reaching, palette, best if subject.is_to_target else ())
    per_epoch = energy_by_time(subject.loading, palette, () if subject.is_to_target else best)
    timed, grids = subject.timed, heatmaps(subject.ranked)
    parts = [*epoch_parts(timed), *compute_phases(timed), *energy_parts(timed), *run_parts(timed)]
    return [
        *([*targeted, *grids, *parts] if targeted else [*per_epoch, *parts, *grids]),
        *epochs(subject.timed, palette),
        *power_over_time([choice.configuration for choice in best], palette),
        *efficiency(scaled, subject.timed),
        *[replace(chart, is_folded=True) for chart in per_epoch if targeted],
    ]


def _heading(configurations: Sequence[Configuration]) -> str:
    """Return the workload and the keys that differ, such as `lenet on digits: batch x storage`; empty without runs."""
    if not configurations:
        return ""
    models, datasets = (
        dict.fromkeys(configuration.value(key) for configuration in configurations) for key in WORKLOAD_KEYS
    )
    if command := command_of(configurations[0]):
        workload = Path(command[0]).name
    else:
        workload = f"{_one_or_count(models, 'models')} on {_one_or_count(datasets, 'datasets')}"
    keys = varied(configurations)
    more = [f"{len(keys) - MAX_HEADING_KEYS} more"] if len(keys) > MAX_HEADING_KEYS else []
    return workload + (f": {' x '.join([*keys[:MAX_HEADING_KEYS], *more])}" if keys else "")


def _one_or_count(names: Collection[object], plural: str) -> str:
    return str(next(iter(names))) if len(names) == 1 else f"{len(names)} {plural}"


def _about(configurations: Sequence[Configuration]) -> str:
    """Return the number of runs with their common model, dataset and machine, as a sentence."""
    if not configurations:
        return ""
    runs = _runs_of(configurations)
    first, keys = configurations[0], [key for key in COMMON_KEYS if key not in varied(configurations)]
    shared = [f"{key} {first.value(key)}" for key in keys if key != "strategy" or first.strategy != SINGLE]
    facts = {
        name: value
        for name in COMMON_FACTS
        if (value := runs[0].platform.get(name)) and all(run.platform.get(name) == value for run in runs)
    }
    what = redact(" ".join(command_of(first))) or ", ".join(shared)
    return " ".join(render_notes("about", len(runs), len(configurations), what, facts))


def _notes(sweep: Sweep, subject: Subject, scaled: Sequence[Scaling], where: Mapping[str, Any]) -> list[str]:
    """Return notes on runs that are left out or disturbed, and on differences between hosts and software."""
    selection = subject.selection
    platforms = [run.platform for run in selection.ended]
    kinds = dict.fromkeys(kind for platform in platforms for kind in platform)
    if len({run.value("power_limit") for run in selection.ended}) > 1:
        kinds.pop("power mode", None)  # a key of these runs
    return render_notes(
        "notes",
        selection,
        [len(group) for group in (subject.timed, subject.loading, subject.candidates)],
        {key: texts_of(values) for key, values in where.items()},
        (selection.count - len(sweep.unreadable), len(sweep.runs)),
        [kind for kind in kinds if len({platform.get(kind) for platform in platforms}) > 1],
        scaling.without_partner(scaled, subject.timed),
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
