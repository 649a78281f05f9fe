"""Multi-objective search with Optuna: choose the next configuration to measure.

The next point is a function of all measurements so far and of a seed only: Optuna's study is rebuilt from the run
folders each time. No second store can disagree with them, and a killed search resumes without loss.

TPE is that of J. Bergstra, R. Bardenet, Y. Bengio, B. Kegl, Algorithms for Hyper-Parameter Optimization, NeurIPS 2011,
and for several objectives that of Y. Ozaki, Y. Tanigaki, S. Watanabe, M. Onishi, Multiobjective Tree-Structured Parzen
Estimator for Computationally Expensive Optimization Problems, GECCO 2020.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import optuna
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from epochmeter.results.metrics import find
from epochmeter.results.reuse import read_reference, record_of
from epochmeter.results.run_folder import READ_ERRORS, OtherSchemaError, RunFolder
from epochmeter.results.run_status import COMPLETED
from epochmeter.shared.record import JOB_FILE
from epochmeter.sweep.search_space import SearchDimension, SearchError

STEADY = ("steady/energy_j", "steady/e2e_s")
TO_TARGET = ("total/energy_to_target_j", "total/time_to_target_s")
MAX_REPEATED_ASKS = 20  # after this many measured points in a row from a sampler, random points are drawn
MAX_DRAWS = 10_000  # maximum number of random points that are drawn until one is unmeasured
PRIOR_GROUPS = ("model", "dataset")
"""Groups whose option earlier sweeps must have in common with a search, so that their times are comparable."""

Point = tuple[str, ...]  # one override per dimension: `batch=8`, `optimizer.lr=0.0123`


class TrialResult(NamedTuple):
    """The metrics of a run, empty if it failed, and why energy was not measured."""

    metrics: Mapping[str, float] = {}
    no_energy: str | None = None


@dataclass(frozen=True)
class SearchSpec:
    """The settings of a search."""

    dimensions: Sequence[SearchDimension]
    objectives: Sequence[str]  # names of metrics to minimize; those that no run measures are dropped
    trials: int = 20  # number of points to measure
    seed: int = 0
    prior: Sequence[tuple[Point, Mapping[str, float]]] = ()  # points and metrics of earlier sweeps, to learn from

    @property
    def size(self) -> float:
        """Number of points in the space."""
        return math.prod(dimension.count for dimension in self.dimensions)

    def point_of(self, overrides: Sequence[str]) -> Point | None:
        """Return the point of a run's overrides; None if they are not in the space."""
        by_key = {override.partition("=")[0]: override for override in overrides}
        try:
            for dimension in self.dimensions:
                dimension.from_override(by_key[dimension.key])
        except (KeyError, ValueError):
            return None
        return tuple(by_key[dimension.key] for dimension in self.dimensions)


def run_search(
    spec: SearchSpec,
    earlier: Mapping[int, Point | None],
    measure: Callable[[int, Point], TrialResult],
    say: Callable[[str], None],
) -> dict[Point, TrialResult]:
    """Measure points until there are `trials`, or the space is exhausted; return the results by point, in order.

    Args:
        earlier: Points of runs that an earlier command numbered, which are measured first; None for a run outside the
            space. `measure` skips completed runs.
        measure: Measures a point under a number. A failed point counts, but the sampler does not learn from it.
        say: Receives progress messages.
    """
    results: dict[Point, TrialResult] = {}

    def measure_point(number: int, point: Point) -> None:
        previous = available_objectives(spec, results)
        results[point] = result = measure(number, point)
        objectives = available_objectives(spec, results)
        if dropped := [name for name in previous if name not in objectives]:
            why = f": {result.no_energy}" if result.no_energy else ""
            say(f"The search minimizes only {' and '.join(objectives)}: there is no {' and no '.join(dropped)}{why}")

    for number, point in earlier.items():
        if point is not None:
            measure_point(number, point)
    number = max(earlier, default=-1) + 1
    while len(results) < spec.trials and (point := next_point(spec, results)) is not None:
        say(f"run {number} ({len(results) + 1} of {min(spec.trials, spec.size)}): {' '.join(point)}")
        measure_point(number, point)
        number += 1
    if len(results) < spec.trials:
        say(f"All {len(results)} points of the space are measured, fewer than hydra.sweeper.trials={spec.trials}.")
    return results


def available_objectives(spec: SearchSpec, results: Mapping[Point, TrialResult]) -> Sequence[str]:
    """Return the objectives that some run measures, or may still reach, as the target; SearchError if none is left."""
    measured = {name for result in results.values() for name in result.metrics}
    no_energy = any(result.no_energy for result in results.values())
    possible = {*measured, *(name for name in TO_TARGET if not (no_energy and find(name).unit == "J"))}
    available = [name for name in spec.objectives if not measured or name in possible]
    if not available:
        raise SearchError(f"no run has {' or '.join(spec.objectives)}", "give more `epochs` than `warmup_epochs`")
    return available


def next_point(spec: SearchSpec, results: Mapping[Point, TrialResult]) -> Point | None:
    """Return the next point to measure, random if the sampler repeats itself; None if all are measured.

    Points of earlier sweeps come last.
    """
    if len(results) >= spec.size:
        return None
    measured = {**dict(spec.prior), **{point: result.metrics for point, result in results.items()}}
    names = available_objectives(spec, results)
    seed = random.Random(f"{spec.seed}/{len(results)}").getrandbits(32)
    study = _study(spec, results, names, seed)
    suggested: list[Point] = []
    for _ in range(MAX_REPEATED_ASKS):
        point = _ask(study, spec)
        if point not in measured:
            return point
        suggested.append(point)
    study.sampler = RandomSampler(seed=seed)
    drawn = (_ask(study, spec) for _ in range(MAX_DRAWS))
    if len(measured) < spec.size:
        return next((point for point in drawn if point not in measured), None)
    return next((point for point in itertools.chain(suggested, drawn) if point not in results), None)


def _ask(study: optuna.Study, spec: SearchSpec) -> Point:
    trial = study.ask({dimension.key: dimension.distribution for dimension in spec.dimensions})
    return tuple(dimension.to_override(trial.params[dimension.key]) for dimension in spec.dimensions)


def _study(spec: SearchSpec, results: Mapping[Point, TrialResult], names: Sequence[str], seed: int) -> optuna.Study:
    """Return a study of Optuna with the points of earlier sweeps and all results as trials, in order."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=["minimize"] * len(names), sampler=TPESampler(seed=seed))
    measured = [(point, result.metrics) for point, result in results.items()]
    for point, metrics in [*spec.prior, *measured]:
        losses = _losses(metrics, names)
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if losses else TrialState.FAIL,
                values=losses,
                params={dimension.key: dimension.from_override(text)
                        for dimension, text in zip(spec.dimensions, point, strict=True)},
                distributions={dimension.key: dimension.distribution for dimension in spec.dimensions},
            )
        )  # fmt: skip
    return study


def _losses(metrics: Mapping[str, float], names: Sequence[str]) -> list[float] | None:
    """Return the values of metrics; None if any is missing or not finite."""
    losses = [float(metrics.get(name, math.nan)) for name in names]
    return losses if all(map(math.isfinite, losses)) else None


def with_prior(
    spec: SearchSpec, folders: Sequence[Path], choices: Mapping[str, str], say: Callable[[str], None]
) -> SearchSpec:
    """Return a search that learns from the completed runs of earlier sweeps, a reused run once, and `say` how many.

    `choices` are the options of the groups in `PRIOR_GROUPS`.
    """
    runs, prior, reasons = dict[Path, Path](), [], Counter[str]()
    for folder in folders:
        numbers = _run_numbers(folder)
        if not numbers:
            raise SearchError(f"`sweep.prior={folder}` has no runs", "give the folder of a sweep: multirun/SWEEP")
        for number in numbers:
            run = folder / str(number)
            runs[record_of(run).folder.resolve()] = run
    for run in runs.values():
        reason, metrics = _prior_result(run, choices)
        point = _recorded_point(run, spec)
        if reason or point is None:
            reasons[reason or "with other keys or values"] += 1
        else:
            prior.append((point, metrics))
    measured = {name for _, metrics in prior for name in metrics}
    names = [name for name in spec.objectives if name in measured or "energy" not in name]
    fitting = [(point, metrics) for point, metrics in prior if _losses(metrics, names)]
    reasons[f"without {' or '.join(names)}"] += len(prior) - len(fitting)
    others = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    total = len(fitting) + reasons.total()
    say(f"sweep.prior: {len(fitting)} of {total} runs seed the search" + (f"; left out: {others}" if others else ""))
    return replace(spec, prior=fitting)


def _prior_result(folder: Path, choices: Mapping[str, str]) -> tuple[str, Mapping[str, float]]:
    """Return why a run of an earlier sweep does not fit, and its metrics."""
    try:
        run, metrics = RunFolder(record_of(folder).folder).run, trial_result(folder).metrics
        if run.rehearsal:
            return "rehearsed", {}
        for group, option in choices.items():
            if run.choices.get(group) != option:
                return f"with another {group}", {}
        return "" if metrics else "not completed", metrics
    except OtherSchemaError:
        return "of another schema", {}
    except READ_ERRORS:
        return "unreadable", {}


def earlier_points(folder: Path, spec: SearchSpec) -> dict[int, Point | None]:
    """Return the point of each run in a sweep's folder by its number; None for a run outside the space."""
    runs = {number: folder / str(number) for number in _run_numbers(folder)}
    began = {number: run for number, run in runs.items() if (run / JOB_FILE).exists() or read_reference(run)}
    return {number: _recorded_point(run, spec) for number, run in began.items()}


def planned_runs(spec: SearchSpec, earlier: Mapping[int, Point | None]) -> int:
    """Return the number of runs of a search after all trials, including earlier runs outside the search space."""
    points = {point for point in earlier.values() if point}
    return max(earlier, default=-1) + 1 + int(max(0, min(spec.trials, spec.size) - len(points)))


def _run_numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal())


def trial_result(folder: Path) -> TrialResult:
    """Return the result of the run in a folder."""
    run_folder = RunFolder(record_of(folder).folder)
    if run_folder.summary is None or run_folder.state != COMPLETED:
        return TrialResult()
    metrics = {name: value for name, value in run_folder.summary["metrics"].items() if value is not None}
    return TrialResult(metrics, None if "total/energy_j" in metrics else run_folder.run.energy.reason)


def _recorded_point(folder: Path, spec: SearchSpec) -> Point | None:
    try:
        reference = read_reference(folder)
        return spec.point_of(reference["overrides"] if reference else RunFolder(folder).run.overrides)
    except (OSError, ValueError, KeyError):  # a damaged record
        return None
