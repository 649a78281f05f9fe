"""Predict time and power of configurations in the grid that were not run, and suggest runs that improve the prediction.

Models of their logarithms are weighted by their cross-validated errors. One is a Gaussian process over the keys that
vary. For a batch size, a power limit or a power mode, others model the physics, also with parameters like those of
earlier sweeps. A power mode is predicted from its clocks: the grid has all modes that need no reboot of the board.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Literal

import numpy as np

from epochmeter.report.analyses import physics
from epochmeter.report.analyses.design import choose_runs
from epochmeter.report.analyses.gaussian import (
    SMOOTH,
    Array,
    Error,
    Grid,
    Model,
    Predictor,
    cross_validate,
    fit_weighted,
    smooth,
)
from epochmeter.report.analyses.next_runs import command_line
from epochmeter.report.analyses.prior import POWER_LIMIT, Column, Prior, mode_clocks, physical_keys, setting, to_grid
from epochmeter.report.runs.configuration import Configuration, NoEnergy, no_energy, varied
from epochmeter.report.runs.costs import Cost, costs
from epochmeter.report.runs.run import NON_CONFIG_KEYS, fingerprint
from epochmeter.report.statistics import Estimate

MIN_CONFIGURATIONS, MAX_CONFIGURATIONS = 6, 100
"""A prediction needs the minimum; of more than the maximum, a random sample is used."""
PER_COORDINATE = 2  # configurations needed per coordinate of a grid point
MOST_GRID = 10_000
MIN_SMOOTH = 12  # configurations from which on the model without physics is used in addition to that with physics
CHUNK = 500  # configurations that are predicted at once; the next runs are chosen from that many
IGNORED_KEYS = (*NON_CONFIG_KEYS, "hydra")
PACKAGE = "sklearn"  # of the extra `report`
QUANTITIES = ("time", "power", "energy")
Followers = Mapping[str, tuple[str, Mapping[str, str]]]
"""Dependent key -> its leader, and its value for each of the leader's values."""


@dataclass(frozen=True)
class Predicted:
    """A predicted configuration of the grid, with the command to run it."""

    title: str
    keys: Mapping[str, str]
    time_s: Estimate
    power_w: Estimate | None
    energy_j: Estimate | None
    command: str


@dataclass(frozen=True)
class Prediction:
    """Predicted configurations, and the cross-validated errors.

    Attributes:
        errors: `time`, and `power` and `energy` if power could be predicted.
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
    no_power: NoEnergy | None = None
    poor_power: Error | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    prior: Prior | None = None

    @property
    def least_energy(self) -> Predicted | None:
        """The configuration with the least predicted energy."""
        least = min(self.points, key=lambda point: point.energy_j.value if point.energy_j else math.inf)
        return least if least.energy_j else None

    @property
    def values(self) -> dict[str, object]:
        """All numbers, as the JSON file has them."""
        return {**asdict(replace(self, prior=None)), "prior": self.prior and self.prior.values}


@dataclass(frozen=True)
class NoPrediction:
    """Why nothing is predicted: the keys of the grid (or hosts), and the number of configurations (or grid points)."""

    reason: Literal["hosts", "few", "large", "other_keys", "complete", "packages", "inaccurate"]
    keys: Sequence[str] = ()
    count: int = 0
    needed: int = 0
    error: Error | None = None

    @property
    def values(self) -> dict[str, object]:
        return {"why_not": asdict(self)}


def predict(
    configurations: Sequence[Configuration], prior: Prior | None = None, count_next: int = 3,
    excluded: Sequence[Configuration] = (),
) -> Prediction | NoPrediction:  # fmt: skip
    """Predict the configurations of the grid of varying keys that were not run, and suggest `count_next` of them.

    Args:
        excluded: Configurations that were started but are not candidates, which are not predicted.
    """
    measured = costs(configurations)
    hosts = list(dict.fromkeys(cost.configuration.host or "unknown" for cost in measured))
    if len(hosts) > 1:
        return NoPrediction("hosts", hosts)
    if len(measured) < MIN_CONFIGURATIONS:
        return NoPrediction("few", count=len(measured), needed=MIN_CONFIGURATIONS)
    columns, followers = _columns(measured)
    missing = _not_run(measured, columns, followers, excluded)
    if isinstance(missing, NoPrediction):
        return missing
    rows = [*zip(*columns.values(), strict=True), *missing]
    grid = to_grid(measured, dict(zip(columns, zip(*rows, strict=True), strict=True)))
    physical = physical_keys(columns, bool(grid.board))
    if len(measured) < (needed := PER_COORDINATE * (len(physical) + len(grid.other_columns))):
        return NoPrediction("few", list(columns), len(measured), needed)
    if find_spec(PACKAGE) is None:
        return NoPrediction("packages", list(columns))
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # matrices are too small for threads
        models: dict[str, Model] = {}
        if not physical or grid.other_columns or len(measured) >= MIN_SMOOTH:
            models[SMOOTH] = smooth
        if physical:
            models["physics"] = partial(physics.fit, physics.DEFAULT)
        if physical and prior and prior.grids:
            models["prior"] = partial(physics.fit, physics.learn(prior.grids))
        points = [dict(zip(columns, point, strict=True)) for point in missing]
        return _predict(measured, grid, points, followers, models, prior, count_next)


def _columns(measured: Sequence[Cost]) -> tuple[dict[str, Column], Followers]:
    """Return the keys of the grid with their values, and the keys that follow from another key, such as `storage.root`.

    A key that was not overridden is part of the grid if the others do not determine it: `data_source` sets `cache`.
    """
    overridden = dict.fromkeys(key for cost in measured for run in cost.configuration.runs for key in run.keys)
    others = varied([cost.configuration for cost in measured])
    every = {key: tuple(setting(cost.configuration, key) for cost in measured) for key in (*overridden, *others)}
    varying = [key for key in overridden if key.partition(".")[0] not in IGNORED_KEYS and len(set(every[key])) > 1]
    groups = {key.partition(".")[0] for key in varying}
    keys = list(varying)
    followers: dict[str, tuple[str, Mapping[str, str]]] = {}
    for key in reversed(varying):
        for leader in keys:
            is_often = 2 * len(set(every[leader])) <= len(measured)
            if leader != key and is_often and _determine([every[leader]], every[key]):
                keys.remove(key)
                followers[key] = leader, dict(zip(every[leader], every[key], strict=True))
                break
    for key in others:
        if key.partition(".")[0] not in groups and not _determine([every[other] for other in keys], every[key]):
            keys.append(key)
    return {key: every[key] for key in keys}, followers


def _determine(leaders: Sequence[Column], column: Column) -> bool:
    """Whether equal values of the leaders always come with equal values in a column."""
    return len(set(zip(*leaders, column, strict=True))) == len(set(zip(*leaders, strict=True)))


def _not_run(
    measured: Sequence[Cost], columns: Mapping[str, Column], followers: Followers, excluded: Sequence[Configuration]
) -> list[tuple[str, ...]] | NoPrediction:
    """Return the points of the grid that were not run, with all power modes, or why nothing can be predicted."""
    keys, run = list(columns), set(zip(*columns.values(), strict=True))
    choices = {key: list(dict.fromkeys(column)) for key, column in columns.items()}
    size = math.prod(map(len, choices.values()))
    if size > MOST_GRID:
        return NoPrediction("large", keys, size)
    if len(run) < len(measured):
        return NoPrediction("other_keys", keys)
    has_modes = POWER_LIMIT in columns and mode_clocks(measured)
    if has_modes and all(leader != POWER_LIMIT for leader, _ in followers.values()):
        runs = [cost.configuration.runs[0] for cost in measured]
        others = [
            name for name in runs[0].mode_clocks if name not in {run.mode for run in runs}.union(columns[POWER_LIMIT])
        ]
        room = (MOST_GRID - size) * len(choices[POWER_LIMIT]) // size
        choices[POWER_LIMIT] += random.Random(0).sample(others, min(room, len(others)))
    groups = [key.partition(".")[0] for key in (*columns, *followers)]
    fixed = {fingerprint(cost.configuration.job, groups) for cost in measured}
    same = [configuration for configuration in excluded if fingerprint(configuration.job, groups) in fixed]
    run |= {tuple(setting(configuration, key) for key in keys) for configuration in same}
    missing = [point for point in itertools.product(*choices.values()) if point not in run]
    return missing or NoPrediction("complete", keys)


def _predict(
    measured: Sequence[Cost], grid: Grid, missing: Sequence[dict[str, str]], followers: Followers,
    models: Mapping[str, Model], prior: Prior | None, count_next: int,
) -> Prediction | NoPrediction:  # fmt: skip
    """Predict the missing points of the grid, which follow the measured configurations."""
    count = len(measured)
    not_run = grid[count:]
    runs = grid[sorted(random.Random(0).sample(range(count), min(count, MAX_CONFIGURATIONS)))]
    weights, (time_error, *others) = cross_validate(models, runs)
    if not time_error.is_useful:
        return NoPrediction("inaccurate", error=time_error)
    is_power_useful = bool(others) and others[0].is_useful
    errors = dict(zip(QUANTITIES, [time_error, *(others if is_power_useful else [])], strict=False))
    predict_logs = fit_weighted(models, weights, runs)
    means, columns = _estimates(predict_logs, not_run, errors)
    rows = zip(missing, *columns, strict=True)
    points = [_predicted(measured[0], keys, followers, *estimates) for keys, *estimates in rows]
    near = np.argsort(means[0] + means[-1], kind="stable")[:CHUNK]  # the least time x energy
    quantities = 1 + is_power_useful
    unmetered = NoEnergy(sum(not cost.power_w for cost in measured), count)
    proposed = choose_runs(predict_logs(not_run[near]).first(quantities), runs.logs[:quantities], count_next)
    return Prediction(
        points=sorted(points, key=lambda point: point.time_s.value),
        errors=errors,
        next_runs=[points[near[index]] for index in proposed],
        measured=count,
        no_power=None if others else no_energy(cost.configuration for cost in measured) or unmetered,
        poor_power=others[0] if others and not is_power_useful else None,
        weights=weights,
        prior=prior,
    )


def _estimates(
    predict_logs: Predictor, not_run: Grid, errors: Mapping[str, Error]
) -> tuple[Array, list[list[Estimate]]]:
    """Return predicted logarithms, and time, power and energy with calibrated intervals; one row per quantity."""
    chunks = [predict_logs(not_run[start : start + CHUNK]).marginals for start in range(0, len(not_run), CHUNK)]
    means, deviations = np.concatenate([np.stack(chunk) for chunk in chunks], axis=2)[:, : len(errors)]
    halves = np.stack([error.half_widths(row) for error, row in zip(errors.values(), deviations, strict=True)])
    units = np.array([1.0, not_run.full_w, not_run.full_w][: len(errors)])[:, None]
    values = units * np.exp([means, means - halves, means + halves])
    return means, [[Estimate(*bounds) for bounds in zip(*rows, strict=True)] for rows in values.swapaxes(0, 1).tolist()]


def _predicted(
    like: Cost, keys: Mapping[str, str], followers: Followers, time_s: Estimate, power_w: Estimate | None = None,
    energy_j: Estimate | None = None,
) -> Predicted:  # fmt: skip
    settings = dict(keys)
    for key, (leader, values) in reversed([*followers.items()]):  # leaders first
        settings[key] = values[settings[leader]]
    title = ", ".join(f"{key} {value}" for key, value in keys.items())
    return Predicted(title, keys, time_s, power_w, energy_j, command_line(like.configuration, settings))
