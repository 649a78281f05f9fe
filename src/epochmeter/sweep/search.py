"""Multi-objective search with Optuna: choose the next configuration to measure.

The next point is a function of all measurements so far and of a seed only: Optuna's study is rebuilt from the run
folders each time. No second store can disagree with them, and a killed search resumes without loss.

TPE is that of J. Bergstra, R. Bardenet, Y. Bengio, B. Kegl, Algorithms for Hyper-Parameter Optimization, NeurIPS 2011,
and for several objectives that of Y. Ozaki, Y. Tanigaki, S. Watanabe, M. Onishi, Multiobjective Tree-Structured Parzen
Estimator for Computationally Expensive Optimization Problems, GECCO 2020. NSGA-II is that of K. Deb, A. Pratap,
S. Agarwal, T. Meyarivan, A Fast and Elitist Multiobjective Genetic Algorithm, IEEE Transactions on Evolutionary
Computation 6, 2002.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from epochmeter.config.errors import InputError, Problem
from epochmeter.results.metrics import EPOCH, METRICS
from epochmeter.sweep.search_space import SearchDimension

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler

SEARCH_FILE = "search.json"
"""File with the settings of a search, in its sweep folder."""
STEADY = ("steady/energy_j", "steady/e2e_s")
TO_TARGET = ("total/energy_to_target_j", "total/time_to_target_s")
MORE_IS_BETTER = ("accuracy", "samples_per_s", "bytes_per_s", "iops", "utilization")
"""Endings of the names of metrics to maximize; all others are minimized."""
SAMPLERS = ("tpe", "nsga2", "random")
GENERATIONS = 4
"""NSGA-II generations per search: with Optuna's population of 50, all of a short search would be random."""
MAX_REPEATED_ASKS = 20
"""After this many known points in a row from a sampler, an unmeasured one is drawn at random."""
MAX_LISTED_POINTS = 100_000
"""For larger grids, a random point is drawn up to this many times instead of from a list of the rest."""

Point = tuple[str, ...]
"""One override per axis: `batch=8`, `optimizer.lr=0.0123`."""


class SearchError(InputError):
    """An invalid search, with a hint."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(Problem(f"hydra/sweeper=optuna: {what}", hint))


class TrialResult(NamedTuple):
    """The result of a run.

    Attributes:
        metrics: Metrics of the summary; empty if the run failed.
        no_energy: Why energy was not measured.
    """

    metrics: Mapping[str, float] = {}
    no_energy: str | None = None


@dataclass(frozen=True)
class SearchSpec:
    """The settings of a search.

    Attributes:
        axes: Dimensions of the space.
        objectives: Names of metrics.
        optional: Objectives that are dropped if no run measures them.
        trials: Number of points to measure.
        sampler: One of `SAMPLERS`.
        seed: Random seed.
    """

    axes: Sequence[SearchDimension]
    objectives: Sequence[str]
    optional: Sequence[str] = ()
    trials: int = 20
    sampler: str = "tpe"
    seed: int = 0

    @property
    def size(self) -> float:
        """Number of points in the space."""
        return math.prod(axis.count for axis in self.axes)

    def point_of(self, overrides: Sequence[str]) -> Point | None:
        """Return the point of a run's overrides; None if they are not in the space."""
        typed = {override.partition("=")[0]: override for override in overrides}
        try:
            for axis in self.axes:
                axis.from_override(typed[axis.key])
        except (KeyError, ValueError):
            return None
        return tuple(typed[axis.key] for axis in self.axes)


def run_search(
    settings: SearchSpec,
    earlier: Mapping[int, Point | None],
    measure: Callable[[int, Point], TrialResult],
    say: Callable[[str], None],
) -> dict[Point, TrialResult]:
    """Measure points until there are `trials`, or the space is exhausted.

    Args:
        settings: The search.
        earlier: Points of runs that an earlier command numbered, which are measured first; None for a run outside the
            space. `measure` skips completed runs.
        measure: Measures a point under a number. A failed point counts, but the sampler does not learn from it.
        say: Receives progress messages.

    Returns:
        The results by point, in order.

    Raises:
        SearchError: No run has an objective.
    """
    results: dict[Point, TrialResult] = {}
    previous = settings.objectives
    total = min(settings.trials, settings.size)
    for number, point in _iter_points(settings, earlier, results):
        if number not in earlier:
            say(f"run {number} ({len(results) + 1} of {total}): {' '.join(point)}")
        results[point] = measured = measure(number, point)
        current = available_objectives(settings, results)
        if dropped := [name for name in previous if name not in current]:
            why = (measured.no_energy or "").rstrip(".")
            say(f"No {' and no '.join(dropped)}: {why}. The search continues with {' and '.join(current)} only.")
        if measured.metrics and (lacks := [name for name in current if name not in measured.metrics]):
            say(f"run {number} has no {' and no '.join(lacks)}: the search ignores it.")
        previous = current
    if len(results) < settings.trials:
        say(f"All {len(results)} points of the space are measured, fewer than hydra.sweeper.trials={settings.trials}.")
    return results


def available_objectives(settings: SearchSpec, results: Mapping[Point, TrialResult]) -> Sequence[str]:
    """Return the objectives without optional ones that are not measured here.

    An objective that some runs lack is kept: a sensor may fail once, and only some runs reach a target.

    Raises:
        SearchError: No run has an objective that is not optional.
    """
    measured_names = {name for measured in results.values() for name in measured.metrics}
    reasons = [measured.no_energy for measured in results.values() if measured.no_energy]
    missing = [name for name in settings.objectives if measured_names and name not in measured_names]
    dropped = [name for name in missing if name in settings.optional and reasons]
    remaining = [name for name in settings.objectives if name not in dropped]
    if unavailable := [name for name in missing if name not in dropped and name not in TO_TARGET]:
        why = f": {reasons[0].rstrip('.')}" if reasons and any("energy" in name for name in unavailable) else ""
        instead = [name for name in remaining if name not in unavailable] or STEADY[1:]
        raise SearchError(
            f"no run has {' or '.join(unavailable)}{why}", f"give hydra.sweeper.objectives=[{','.join(instead)}]"
        )
    return remaining


def next_point(settings: SearchSpec, results: Mapping[Point, TrialResult]) -> Point | None:
    """Return the next point to measure; None if there is none.

    The sampler is told known results again if it repeats.
    """
    if len(results) >= settings.size:
        return None
    names = available_objectives(settings, results)
    study = _study(settings, results, names)
    for _ in range(MAX_REPEATED_ASKS):
        trial = study.ask({axis.key: axis.distribution() for axis in settings.axes})
        point = tuple(axis.to_override(trial.params[axis.key]) for axis in settings.axes)
        if point not in results:
            return point
        _report_result(study, trial, to_losses(results[point].metrics, names))
    return _random_unmeasured(settings, results)


def resolve_objectives(names: Sequence[str] | None, to_target: bool) -> tuple[Sequence[str], Sequence[str]]:
    """Return the objectives, and the optional ones among them.

    Args:
        names: Configured objectives; None: energy and time, per steady epoch or to the target, or time only without
            measured energy.
        to_target: Whether the run has a target.

    Raises:
        SearchError: A name is not a metric of runs.
    """
    if names is None:
        default = TO_TARGET if to_target else STEADY
        return default, default[:1]
    available = {f"steady/{name}" for name, metric in EPOCH.items() if metric.steady}
    available |= {name for name in METRICS if name.startswith(("total/", "model/", "throughput/"))}
    if not names:
        raise SearchError("`hydra.sweeper.objectives=[]` is empty", "give one or more, or null for energy and time")
    for name in names:
        if name not in available and not str(name).startswith("steady/energy_"):
            suggestion = "".join(f"did you mean {match}? " for match in get_close_matches(str(name), available, 1))
            raise SearchError(
                f"hydra.sweeper.objectives: {name} is not a metric of runs", f"{suggestion}docs/metrics.md lists them"
            )
    return list(dict.fromkeys(names)), ()


def to_losses(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...] | None:
    """Return the values to minimize; None if any is missing or not finite."""
    values = [metrics.get(name, math.nan) for name in names]
    if not all(map(math.isfinite, values)):
        return None
    return tuple(-value if name.endswith(MORE_IS_BETTER) else value for name, value in zip(names, values, strict=True))


def is_pareto_front(costs: Iterable[tuple[float, ...]]) -> list[bool]:
    """Return for each tuple of losses whether it is on the Pareto front: no other is at least as good in all and better
    in one.
    """
    all_costs = list(costs)
    front_costs: list[tuple[float, ...]] = []
    for cost in sorted(
        set(all_costs)
    ):  # sorted, so dominating tuples come first: for two losses only the last kept can dominate
        candidates = front_costs if len(cost) > 2 else front_costs[-1:]
        if not any(all(a <= b for a, b in zip(other, cost, strict=True)) for other in candidates):
            front_costs.append(cost)
    on_front = set(front_costs)
    return [cost in on_front for cost in all_costs]


def _iter_points(
    settings: SearchSpec, earlier: Mapping[int, Point | None], results: Mapping[Point, TrialResult]
) -> Iterator[tuple[int, Point]]:
    """Yield numbered points; `results` has the result of each before the next is requested."""
    yield from ((number, point) for number, point in earlier.items() if point is not None)
    number = max(earlier, default=-1) + 1
    while len(results) < settings.trials and (point := next_point(settings, results)) is not None:
        yield number, point
        number += 1


def _study(settings: SearchSpec, results: Mapping[Point, TrialResult], names: Sequence[str]) -> Study:
    """Return a study with all known points and their results, in order."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=["minimize"] * len(names), sampler=_sampler(settings, len(results)))
    distributions = {axis.key: axis.distribution() for axis in settings.axes}
    for point, measured in results.items():
        study.enqueue_trial(
            {axis.key: axis.from_override(typed) for axis, typed in zip(settings.axes, point, strict=True)}
        )
        trial = study.ask(distributions)
        _ = trial.relative_params  # without this access, NSGA-II does not count enqueued trials in a generation
        _report_result(study, trial, to_losses(measured.metrics, names))
    return study


def _report_result(study: Study, trial: Trial, values: Sequence[float] | None) -> None:
    from optuna.trial import TrialState

    if values is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, values)


def _sampler(settings: SearchSpec, count: int) -> BaseSampler:
    """Return the sampler after `count` points: reproducible, but different for each count."""
    from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler

    seed = random.Random(f"{settings.seed}/{count}").getrandbits(32)
    if settings.sampler == "nsga2":
        return NSGAIISampler(population_size=min(50, max(4, settings.trials // GENERATIONS)), seed=seed)
    return RandomSampler(seed=seed) if settings.sampler == "random" else TPESampler(seed=seed)


def _random_unmeasured(settings: SearchSpec, results: Mapping[Point, TrialResult]) -> Point | None:
    """Return a random unmeasured point; None if none is found."""
    generator = random.Random(f"{settings.seed}/{len(results)}")
    if settings.size <= MAX_LISTED_POINTS:
        grid = product(
            *([axis.at_fraction((n + 0.5) / axis.count) for n in range(int(axis.count))] for axis in settings.axes)
        )
        return generator.choice([point for point in grid if point not in results])
    samples = (tuple(axis.at_fraction(generator.random()) for axis in settings.axes) for _ in range(MAX_LISTED_POINTS))
    return next((point for point in samples if point not in results), None)
