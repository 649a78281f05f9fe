"""Which point of a space to measure next, in search of those that none other betters.

The next point is a function of all that was measured so far and of a seed, and of nothing else: Optuna's study is made
anew from the runs' records each time. There is no second account that could disagree with them, and a search that was
killed goes on as if it had not been.

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
from epochmeter.sweep.search_space import Axis

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler

SEARCH = "search.json"
"""The file beside a search's runs that says by what they were searched."""
STEADY = ("steady/energy_j", "steady/e2e_s")
TO_TARGET = ("total/energy_to_target_j", "total/time_to_target_s")
MORE_IS_BETTER = ("accuracy", "samples_per_s", "bytes_per_s", "iops", "utilization")
"""How the names of metrics end of which more is better; of all others less is."""
SAMPLERS = ("tpe", "nsga2", "random")
GENERATIONS = 4
"""So many of NSGA-II's fill a search: a run takes minutes, and Optuna's 50 to a generation would all be random."""
PATIENCE = 20
"""So many known points in a row may a sampler ask for, before one that is not known is drawn at random."""
MANY = 100_000
"""Of a grid of more points a random one is drawn so often, rather than from a list of those that are left."""

Point = tuple[str, ...]
"""An override for each axis: `batch=8`, `optimizer.lr=0.0123`."""


class SearchError(InputError):
    """What cannot be searched, or not by what is asked for; and what can."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(Problem(f"hydra/sweeper=optuna: {what}", hint))


class Measured(NamedTuple):
    """What a run tells: the metrics of its summary, none where it failed."""

    metrics: Mapping[str, float] = {}
    no_energy: str | None = None
    """Why it measured none."""


@dataclass(frozen=True)
class Search:
    """What is searched, for what and how."""

    axes: Sequence[Axis]
    objectives: Sequence[str]
    """Names of metrics."""
    optional: Sequence[str] = ()
    """Those of them that are given up where no run measures them."""
    trials: int = 20
    """Points to measure."""
    sampler: str = "tpe"
    seed: int = 0

    @property
    def size(self) -> float:
        """How many points there are."""
        return math.prod(axis.count for axis in self.axes)

    def point_of(self, overrides: Sequence[str]) -> Point | None:
        """The point that a run of these overrides is of; None where it is of none."""
        typed = {override.partition("=")[0]: override for override in overrides}
        try:
            for axis in self.axes:
                axis.drawn(typed[axis.key])
        except (KeyError, ValueError):
            return None
        return tuple(typed[axis.key] for axis in self.axes)


def search(
    asked: Search,
    earlier: Mapping[int, Point | None],
    measure: Callable[[int, Point], Measured],
    say: Callable[[str], None],
) -> dict[Point, Measured]:
    """Measures points, each by a number, until so many are or there are no others; what each gave, in their order.

    `earlier` has what an earlier command gave a number to: these points are the first, and it is for `measure` to know
    which of them are whole; what is no point has its number taken. A point that failed was tried: it counts, and
    teaches the sampler nothing. Raises SearchError where the runs have none of what is searched for.
    """
    known: dict[Point, Measured] = {}
    before = asked.objectives
    total = min(asked.trials, asked.size)
    for number, point in _turns(asked, earlier, known):
        if number not in earlier:
            say(f"run {number} ({len(known) + 1} of {total}): {' '.join(point)}")
        known[point] = measured = measure(number, point)
        now = sought(asked, known)
        if given_up := [name for name in before if name not in now]:
            why = (measured.no_energy or "").rstrip(".")
            say(f"No {' and no '.join(given_up)}: {why}. The search goes on by {' and '.join(now)} alone.")
        if measured.metrics and (lacks := [name for name in now if name not in measured.metrics]):
            say(f"run {number} has no {' and no '.join(lacks)}: it teaches the search nothing.")
        before = now
    if len(known) < asked.trials:
        say(f"All {len(known)} points of the space are measured; hydra.sweeper.trials={asked.trials} asks for more.")
    return known


def sought(asked: Search, known: Mapping[Point, Measured]) -> Sequence[str]:
    """The objectives, less what is given up as it is not measured here; SearchError for others that no run has.

    What a run lacks another may have: a sensor may fail once, and a target is reached by some.
    """
    had = {name for measured in known.values() for name in measured.metrics}
    reasons = [measured.no_energy for measured in known.values() if measured.no_energy]
    never = [name for name in asked.objectives if had and name not in had]
    given_up = [name for name in never if name in asked.optional and reasons]
    kept = [name for name in asked.objectives if name not in given_up]
    if lost := [name for name in never if name not in given_up and name not in TO_TARGET]:
        why = f": {reasons[0].rstrip('.')}" if reasons and any("energy" in name for name in lost) else ""
        instead = [name for name in kept if name not in lost] or STEADY[1:]
        raise SearchError(
            f"no run has {' or '.join(lost)}{why}", f"give hydra.sweeper.objectives=[{','.join(instead)}]"
        )
    return kept


def next_point(asked: Search, known: Mapping[Point, Measured]) -> Point | None:
    """The point to measure after these; None where there is no other.

    Where a sampler asks for one that is known, it is told once more what that gave.
    """
    if len(known) >= asked.size:
        return None
    names = sought(asked, known)
    study = _study(asked, known, names)
    for _ in range(PATIENCE):
        trial = study.ask({axis.key: axis.distribution() for axis in asked.axes})
        point = tuple(axis.typed(trial.params[axis.key]) for axis in asked.axes)
        if point not in known:
            return point
        _tell(study, trial, losses(known[point].metrics, names))
    return _other(asked, known)


def chosen(names: Sequence[str] | None, to_target: bool) -> tuple[Sequence[str], Sequence[str]]:
    """The objectives and those of them that are optional.

    None asks for energy and time, of a steady epoch or to the target where there is one, or for time alone where no
    energy is measured. Raises SearchError for names that are no run's.
    """
    if names is None:
        default = TO_TARGET if to_target else STEADY
        return default, default[:1]
    known = {f"steady/{name}" for name, metric in EPOCH.items() if metric.steady}
    known |= {name for name in METRICS if name.startswith(("total/", "model/", "throughput/"))}
    if not names:
        raise SearchError("`hydra.sweeper.objectives=[]` is empty", "give one or more, or null for energy and time")
    for name in names:
        if name not in known and not str(name).startswith("steady/energy_"):
            near = "".join(f"did you mean {match}? " for match in get_close_matches(str(name), known, 1))
            raise SearchError(
                f"hydra.sweeper.objectives: {name} is no metric of a run", f"{near}docs/metrics.md has them"
            )
    return list(dict.fromkeys(names)), ()


def losses(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...] | None:
    """Of each name what is the better the less it is; None where any is not there, or no number."""
    values = [metrics.get(name, math.nan) for name in names]
    if not all(map(math.isfinite, values)):
        return None
    return tuple(-value if name.endswith(MORE_IS_BETTER) else value for name, value in zip(names, values, strict=True))


def front(costs: Iterable[tuple[float, ...]]) -> list[bool]:
    """For each tuple of losses whether it is on the Pareto front: none other is as good in all and better in one."""
    every = list(costs)
    on: list[tuple[float, ...]] = []
    for one in sorted(set(every)):  # what betters it comes before it: of two losses, the last that was kept, if any
        held = on if len(one) > 2 else on[-1:]
        if not any(all(a <= b for a, b in zip(other, one, strict=True)) for other in held):
            on.append(one)
    kept = set(on)
    return [one in kept for one in every]


def _turns(
    asked: Search, earlier: Mapping[int, Point | None], known: Mapping[Point, Measured]
) -> Iterator[tuple[int, Point]]:
    """The points in turn, by their numbers; of each it is `known` what it gave before there is another."""
    yield from ((number, point) for number, point in earlier.items() if point is not None)
    number = max(earlier, default=-1) + 1
    while len(known) < asked.trials and (point := next_point(asked, known)) is not None:
        yield number, point
        number += 1


def _study(asked: Search, known: Mapping[Point, Measured], names: Sequence[str]) -> Study:
    """A study that has asked for all that is known, in that order, and was told what it gave."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=["minimize"] * len(names), sampler=_sampler(asked, len(known)))
    distributions = {axis.key: axis.distribution() for axis in asked.axes}
    for point, measured in known.items():
        study.enqueue_trial({axis.key: axis.drawn(typed) for axis, typed in zip(asked.axes, point, strict=True)})
        trial = study.ask(distributions)
        _ = trial.relative_params  # has NSGA-II count it to a generation, which Optuna leaves out where all is given
        _tell(study, trial, losses(measured.metrics, names))
    return study


def _tell(study: Study, trial: Trial, values: Sequence[float] | None) -> None:
    from optuna.trial import TrialState

    if values is None:
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, values)


def _sampler(asked: Search, count: int) -> BaseSampler:
    """The sampler after so many points: it draws the same each time, and other than after fewer."""
    from optuna.samplers import NSGAIISampler, RandomSampler, TPESampler

    seed = random.Random(f"{asked.seed}/{count}").getrandbits(32)
    if asked.sampler == "nsga2":
        return NSGAIISampler(population_size=min(50, max(4, asked.trials // GENERATIONS)), seed=seed)
    return RandomSampler(seed=seed) if asked.sampler == "random" else TPESampler(seed=seed)


def _other(asked: Search, known: Mapping[Point, Measured]) -> Point | None:
    """A point that is not known, drawn at random; None where none is found."""
    draws = random.Random(f"{asked.seed}/{len(known)}")
    if asked.size <= MANY:
        every = product(*([axis.at((n + 0.5) / axis.count) for n in range(int(axis.count))] for axis in asked.axes))
        return draws.choice([point for point in every if point not in known])
    some = (tuple(axis.at(draws.random()) for axis in asked.axes) for _ in range(MANY))
    return next((point for point in some if point not in known), None)
