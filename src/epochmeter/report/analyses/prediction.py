"""Predict time and power of configurations in the grid that were not run, and suggest runs that improve the prediction.

Models of their logarithms are weighted by their cross-validated errors: a Gaussian process over the keys that vary; for
a batch size or a power limit a model of their physics; and the same with parameters like those of earlier sweeps.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np

from epochmeter.report.analyses import physics
from epochmeter.report.analyses.front import choose_runs
from epochmeter.report.analyses.gaussian import (
    SMOOTH,
    Error,
    Grid,
    Model,
    cross_validate,
    encode,
    fit_weighted,
    smooth,
)
from epochmeter.report.analyses.next_runs import command_line
from epochmeter.report.analyses.prior import Prior, has_physics, to_grid
from epochmeter.report.runs.configuration import Configuration, no_energy, varied
from epochmeter.report.runs.costs import Cost, costs
from epochmeter.report.runs.run import NON_CONFIG_KEYS
from epochmeter.report.statistics import Estimate

MIN_CONFIGURATIONS, MAX_CONFIGURATIONS = 6, 100
"""A prediction needs the minimum; of more than the maximum, a random sample is used."""
PER_COORDINATE = 2
"""Configurations needed per coordinate of a grid point."""
MOST_GRID = 10_000
MIN_SMOOTH = 12
"""Configurations from which on the model without physics is used besides that with physics."""
CHUNK = 500
"""Configurations that are predicted at once; the next runs are chosen from that many."""
IGNORED_KEYS = (*NON_CONFIG_KEYS, "hydra")
TIME, POWER = "time", "power"
PHYSICS, PRIOR = "physics", "prior"
"""Models."""
PARTLY = "not all configurations have one"
Column = tuple[str, ...]
"""A key's value in each measured configuration."""
Followers = Mapping[str, tuple[str, Column, Column]]
"""Dependent key -> its leader, the leader's values and its own."""


@dataclass(frozen=True)
class Predicted:
    """A predicted configuration of the grid, with the command to run it."""

    title: str
    keys: Mapping[str, str]
    time_s: Estimate
    power_w: Estimate | None
    command: str

    @property
    def energy_j(self) -> float | None:
        return self.time_s.value * self.power_w.value if self.power_w else None


@dataclass(frozen=True)
class Prediction:
    """Predicted configurations, and the cross-validated errors.

    Attributes:
        errors: `time`, and `power` if it could be predicted.
        next_runs: Runs that reduce the uncertainty of the Pareto front most, each given those before it.
        measured: Number of configurations that were run; the models are fitted to a random sample of many.
        poor_power: Error of the power, if it is hardly better than that of the mean.
        weights: Weight of each model in the prediction.
        prior: Earlier runs, whose weight is in `weights` if they can be used; None if there are none.
    """

    points: Sequence[Predicted]
    errors: Mapping[str, Error]
    next_runs: Sequence[Predicted]
    measured: int
    no_power: str | None = None
    poor_power: Error | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    prior: Prior | None = None

    @property
    def least_energy(self) -> Predicted | None:
        """The configuration with the least predicted energy."""
        metered = [point for point in self.points if point.energy_j is not None]
        return min(metered, key=lambda point: point.energy_j or math.inf, default=None)

    @property
    def values(self) -> dict[str, object]:
        """All numbers, as the JSON file has them."""
        numbers = asdict(replace(self, prior=None))
        prior = self.prior.values if self.prior else None
        return {**numbers, "energies_j": [point.energy_j for point in self.points], "prior": prior}


Reason = Literal["hosts", "few", "large", "other keys", "complete", "inaccurate"]


@dataclass(frozen=True)
class NoPrediction:
    """Why nothing is predicted.

    Attributes:
        keys: Keys of the grid, or the hosts if there are several.
        count: Number of configurations, of the grid if that is too large.
        error: Error of the time, if it is hardly better than that of the mean.
    """

    reason: Reason
    keys: Sequence[str] = ()
    count: int = 0
    needed: int = 0
    error: Error | None = None

    @property
    def values(self) -> dict[str, object]:
        return {"why_not": asdict(self)}


def predict(
    configurations: Sequence[Configuration], prior: Prior | None = None, count_next: int = 3
) -> Prediction | NoPrediction:
    """Predict the configurations of the grid of varying keys that were not run; else return why not.

    Args:
        prior: Earlier runs to learn from.
        count_next: Number of runs to suggest.
    """
    measured = costs(configurations)
    count = len(measured)
    hosts = list(dict.fromkeys(cost.configuration.host or "unknown" for cost in measured))
    if len(hosts) > 1:
        return NoPrediction("hosts", hosts)
    if count < MIN_CONFIGURATIONS:
        return NoPrediction("few", count=count, needed=MIN_CONFIGURATIONS)
    columns, followers = _columns(measured)
    keys, settings = list(columns), list(zip(*columns.values(), strict=True))
    choices = [list(dict.fromkeys(column)) for column in columns.values()]
    size = math.prod(map(len, choices))
    if size > MOST_GRID:
        return NoPrediction("large", keys, size)
    run = set(settings)
    if len(run) < count:
        return NoPrediction("other keys", keys)
    missing = [point for point in itertools.product(*choices) if point not in run]
    if not missing:
        return NoPrediction("complete", keys)
    places = encode([*settings, *missing])
    physical = [key for key, column in columns.items() if has_physics(key, column)]
    widths = [(key, encode([[value] for value in column]).shape[1]) for key, column in columns.items()]
    others = np.flatnonzero(np.repeat([key not in physical for key, _ in widths], [width for _, width in widths]))
    if count < (needed := PER_COORDINATE * (len(physical) + len(others))):
        return NoPrediction("few", keys, count, needed)
    points = [dict(zip(keys, point, strict=True)) for point in missing]
    grid = to_grid(measured, points, places, others.tolist())
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # matrices are too small for threads
        models = _models(bool(physical), grid, prior, count)
        return _predict(measured, grid, points, followers, models, prior, count_next)


def _models(is_physical: bool, grid: Grid, prior: Prior | None, runs: int) -> dict[str, Model]:
    """Return the models that apply, by name."""
    models: dict[str, Model] = {}
    if not is_physical or grid.other_columns or runs >= MIN_SMOOTH:
        models[SMOOTH] = smooth
    if is_physical:
        models[PHYSICS] = partial(physics.fit, physics.DEFAULT)
    if is_physical and prior and prior.grids:
        models[PRIOR] = partial(physics.fit, physics.learn(prior.grids))
    return models


def _predict(
    measured: Sequence[Cost], grid: Grid, missing: Sequence[dict[str, str]], followers: Followers,
    models: Mapping[str, Model], prior: Prior | None, count_next: int,
) -> Prediction | NoPrediction:  # fmt: skip
    """Predict the missing points of the grid, which follow the measured configurations."""
    count = len(measured)
    runs = grid[sorted(random.Random(0).sample(range(count), min(count, MAX_CONFIGURATIONS)))]
    weights, (time_error, *power_error) = cross_validate(models, runs)
    if not time_error.is_useful:
        return NoPrediction("inaccurate", error=time_error)
    errors = dict(zip((TIME, POWER), (time_error, *(error for error in power_error if error.is_useful)), strict=False))
    predict_logs = fit_weighted(models, weights, runs)
    chunks = [predict_logs(grid[start : start + CHUNK]).marginals for start in range(count, len(grid), CHUNK)]
    means, deviations = np.concatenate([np.stack(chunk) for chunk in chunks], axis=2)[:, : len(errors)]
    halves = deviations * np.array([[error.width] for error in errors.values()])
    columns = [
        [Estimate(mean, mean - half, mean + half).exp().scaled(unit) for mean, half in zip(*row, strict=True)]
        for *row, unit in zip(means.tolist(), halves.tolist(), (1.0, grid.full_w)[: len(errors)], strict=True)
    ]
    rows = zip(missing, *columns, strict=True)
    points = [_predicted(measured[0], keys, followers, *estimates) for keys, *estimates in rows]
    near = np.argsort(means[0] + means.sum(axis=0), kind="stable")[:CHUNK]  # the least time x energy
    proposed = choose_runs(predict_logs(grid[count + near]).first(len(errors)), runs.logs[: len(errors)], count_next)
    return Prediction(
        points=sorted(points, key=lambda point: point.time_s.value),
        errors=errors,
        next_runs=[points[near[index]] for index in proposed],
        measured=count,
        no_power=(no_energy([cost.configuration for cost in measured]) or PARTLY) if len(grid.logs) == 1 else None,
        poor_power=next((error for error in power_error if not error.is_useful), None),
        weights=weights,
        prior=prior,
    )


def _columns(measured: Sequence[Cost]) -> tuple[dict[str, Column], Followers]:
    """Return the keys of the grid with their values, and the keys that follow from another one.

    `storage.root` follows from `storage`, so that a command never combines a storage with the folder of another one.
    A key that was not overridden is part of the grid if the others do not determine it: `data_source` sets `cache`.
    """
    overridden = dict.fromkeys(key for cost in measured for run in cost.configuration.runs for key in run.keys)
    others = varied([cost.configuration for cost in measured])
    every = {key: tuple(_setting(cost, key) for cost in measured) for key in (*overridden, *others)}
    varying = [key for key in overridden if key.partition(".")[0] not in IGNORED_KEYS and len(set(every[key])) > 1]
    groups = {key.partition(".")[0] for key in varying}
    keys = list(varying)
    followers: dict[str, tuple[str, Column, Column]] = {}
    for key in reversed(varying):
        for leader in keys:
            is_often = 2 * len(set(every[leader])) <= len(measured)
            if leader != key and is_often and _determine([every[leader]], every[key]):
                keys.remove(key)
                followers[key] = (leader, every[leader], every[key])
                break
    for key in others:
        if key.partition(".")[0] not in groups and not _determine([every[other] for other in keys], every[key]):
            keys.append(key)
    return {key: every[key] for key in keys}, followers


def _determine(leaders: Sequence[Column], column: Column) -> bool:
    """Whether equal values of the leaders always come with equal values in a column."""
    return len(set(zip(*leaders, column, strict=True))) == len(set(zip(*leaders, strict=True)))


def _setting(cost: Cost, key: str) -> str:
    """Return a key's value as overridden, or else as configured."""
    keys = cost.configuration.runs[0].keys
    return keys[key] if key in keys else cost.configuration.value(key)


def _predicted(
    like: Cost, keys: Mapping[str, str], followers: Followers, time_s: Estimate, power_w: Estimate | None = None
) -> Predicted:
    settings = dict(keys)
    for key, (leader, values, own) in reversed([*followers.items()]):  # leaders first
        settings[key] = own[values.index(settings[leader])]
    title = ", ".join(f"{key} {value}" for key, value in keys.items())
    return Predicted(title, keys, time_s, power_w, command_line(like.configuration, settings))
