"""Predict time and power of configurations in the grid that were not run, and suggest runs that improve the prediction.

Time and power each have a Gaussian process on their logarithms, over the keys that vary. Errors are cross-validated.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from epochmeter.report.analyses.gaussian import Array, Error, cross_validate, encode, fit, most_informative, predict_at
from epochmeter.report.analyses.next_runs import command_line
from epochmeter.report.runs.configuration import Configuration, no_energy, varied
from epochmeter.report.runs.costs import Cost, costs
from epochmeter.report.runs.run import NON_CONFIG_KEYS
from epochmeter.report.statistics import Estimate

MIN_CONFIGURATIONS, MAX_CONFIGURATIONS = 6, 100
"""A prediction needs the minimum; of more than the maximum, a random sample is used."""
PER_COORDINATE = 2
"""Configurations needed per coordinate of a grid point."""
MOST_GRID = 10_000
NEXT_RUNS = 3
IGNORED_KEYS = (*NON_CONFIG_KEYS, "hydra")
TIME, POWER = "time", "power"
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
        next_three: The most informative runs: each is the most uncertain once those before it are run.
        measured: Number of configurations that were run; the processes are fitted to a random sample of many.
        poor_power: Error of the power, if it is hardly better than that of the mean.
    """

    points: Sequence[Predicted]
    errors: Mapping[str, Error]
    next_three: Sequence[Predicted]
    measured: int
    no_power: str | None = None
    poor_power: Error | None = None

    @property
    def least_energy(self) -> Predicted | None:
        """The configuration with the least predicted energy."""
        metered = [point for point in self.points if point.energy_j is not None]
        return min(metered, key=lambda point: point.energy_j or math.inf, default=None)

    @property
    def values(self) -> dict[str, object]:
        """All numbers, as the JSON file has them."""
        return {**asdict(self), "energies_j": [point.energy_j for point in self.points]}


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


def predict(configurations: Sequence[Configuration]) -> Prediction | NoPrediction:
    """Predict the configurations of the grid of varying keys that were not run; else return why not."""
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
    coordinates = encode([*settings, *missing])
    if count < (needed := PER_COORDINATE * coordinates.shape[1]):
        return NoPrediction("few", keys, count, needed)
    points = [dict(zip(keys, point, strict=True)) for point in missing]
    return _predict(measured, coordinates, points, followers)


def _predict(
    measured: Sequence[Cost], coordinates: Array, missing: Sequence[dict[str, str]], followers: Followers
) -> Prediction | NoPrediction:
    """Predict the missing points of the grid, whose coordinates follow those of the measured configurations."""
    count = len(measured)
    sample = sorted(random.Random(0).sample(range(count), min(count, MAX_CONFIGURATIONS)))
    places, grid = coordinates[sample], coordinates[count:]
    fitted = [measured[index] for index in sample]
    logs, no_power = _logs(fitted)
    errors = {name: cross_validate(places, values) for name, values in logs.items()}
    if not errors[TIME].is_useful:
        return NoPrediction("inaccurate", error=errors[TIME])
    useful = [name for name, error in errors.items() if error.is_useful]
    models = {name: fit(places, logs[name]) for name in useful}
    estimates = {name: predict_at(model, grid, errors[name].width) for name, model in models.items()}
    no_powers = [None] * len(missing)
    points = [
        _predicted(measured[0], keys, followers, time_s, power_w)
        for keys, time_s, power_w in zip(missing, estimates[TIME], estimates.get(POWER, no_powers), strict=True)
    ]
    return Prediction(
        points=sorted(points, key=lambda point: point.time_s.value),
        errors={name: errors[name] for name in useful},
        next_three=[points[index] for index in most_informative(models, places, grid, NEXT_RUNS)],
        measured=count,
        no_power=no_power,
        poor_power=errors[POWER] if POWER in errors and POWER not in useful else None,
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


def _logs(fitted: Sequence[Cost]) -> tuple[dict[str, Array], str | None]:
    """Return the logarithms of time and power, and why there is no power."""
    logs = {TIME: np.log([cost.time_s for cost in fitted])}
    if why := no_energy([cost.configuration for cost in fitted]):
        return logs, why
    powers_w = [cost.power_w for cost in fitted if cost.power_w]
    if len(powers_w) < len(fitted):
        return logs, "not all configurations have one"
    return {**logs, POWER: np.log(powers_w)}, None


def _predicted(
    like: Cost, keys: Mapping[str, str], followers: Followers, time_s: Estimate, power_w: Estimate | None
) -> Predicted:
    settings = dict(keys)
    for key, (leader, values, own) in reversed([*followers.items()]):  # leaders first
        settings[key] = own[values.index(settings[leader])]
    title = ", ".join(f"{key} {value}" for key, value in keys.items())
    return Predicted(title, keys, time_s, power_w, command_line(like.configuration, settings))
