"""Time and power of grid points that were not run, predicted from those that were, and what to run to predict better.

A Gaussian process each on the logarithms of time and of power, over the keys that vary. Its error is told by leaving
out one job at a time, or a part of many, and fitting all of it anew to the others.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from epochmeter.report.analyses.gaussian import Error, cross_validate, fit, most_informative, predict_at
from epochmeter.report.analyses.next_runs import typed
from epochmeter.report.runs.configuration import NON_CONFIG_KEYS, Configuration, no_energy, varied
from epochmeter.report.runs.costs import Cost, costs
from epochmeter.report.statistics import Estimate
from epochmeter.report.words import ABSENT, Grid, interval, number, spread

LEAST_JOBS, MOST_JOBS = 6, 100
"""Fewer teach nothing; of more, so many are learned from."""
EACH_TAKES = 2
"""Jobs for each number that says where in the grid a point is."""
MOST_GRID = 10_000
NEXT = 3
LISTED = 10
"""Predictions that the table shows; the numbers for machines hold all."""
NOT_THE_JOBS = (*NON_CONFIG_KEYS, "hydra")
TIME, POWER = "time", "power"


@dataclass(frozen=True)
class Predicted:
    """A point of the grid that was not run; what its 95 % intervals are of is told by the prediction."""

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
    """What was predicted, how well, and the runs that would teach the most."""

    points: Sequence[Predicted]
    errors: Mapping[str, Error]
    """`time`, and `power` where that could be learned."""
    next_three: Sequence[Predicted]
    """Each the least certain once those before it were run."""
    of: str
    """What the intervals are of: a run, or the mean of as many as the jobs had that were learned from."""
    notes: Sequence[str] = ()


def predict(configurations: Sequence[Configuration]) -> Prediction | str:
    """Predicts the points of the grid of all typed keys that vary; a sentence that says why where it cannot."""
    measured = costs(configurations)
    (keys, followers), hosts = _keys(measured), dict.fromkeys(cost.configuration.host or "unknown" for cost in measured)
    if len(hosts) > 1:
        one = f"where={{host: {next(iter(hosts))}}}"
        return f"the jobs ran on {len(hosts)} hosts, which no key tells apart: choose those of one: {one}"
    if len(measured) < LEAST_JOBS:
        return f"{len(measured)} jobs with a time are too few to learn from: it takes {LEAST_JOBS} or more"
    if not keys:
        return "the jobs differ in no key"
    choices = [list(dict.fromkeys(_setting(cost, key) for cost in measured)) for key in keys]
    count = math.prod(map(len, choices))
    if count > MOST_GRID:
        return f"the grid of {', '.join(keys)} has {count} points, more than {MOST_GRID}: choose some of the runs"
    run = {tuple(_setting(cost, key) for key in keys) for cost in measured}
    if len(run) < len(measured):
        return f"some of the jobs differ in what none of {', '.join(keys)} tells: choose those that are alike by where="
    missing = [point for point in itertools.product(*choices) if point not in run]
    if not missing:
        return f"every point of the grid of {', '.join(keys)} was run"
    columns = list(map(_column, choices))
    if len(measured) < (needed := EACH_TAKES * sum(len(next(iter(column.values()))) for column in columns)):
        return f"{len(measured)} jobs are too few to learn {', '.join(keys)} from: it takes {needed} or more"
    learned = _drawn(measured)
    places = [_place(tuple(_setting(cost, key) for key in keys), columns) for cost in learned]
    grid = [_place(point, columns) for point in missing]
    models, errors, notes = _learn(places, learned)
    if len(learned) < len(measured):
        notes.insert(0, f"Of {len(measured)} jobs {len(learned)}, drawn at random, were learned from.")
    if not errors[TIME].useful:
        return _hardly(TIME, errors[TIME])
    models, errors = ({name: kept[name] for name in kept if errors[name].useful} for kept in (models, errors))
    estimates = {name: predict_at(model, grid, errors[name].width) for name, (model, _) in models.items()}
    predicted = [
        _predicted(
            measured[0],
            dict(zip(keys, point, strict=True)),
            followers,
            {name: quantity[index] for name, quantity in estimates.items()},
        )
        for index, point in enumerate(missing)
    ]
    wanted = most_informative(models, places, grid, NEXT)
    return Prediction(predicted, errors, [predicted[index] for index in wanted], _of(learned), notes)


def sentences(prediction: Prediction | str) -> list[str]:
    """What is predicted, with its error first."""
    if isinstance(prediction, str):
        return [f"No prediction: {prediction}."]
    count = prediction.errors[TIME].jobs
    texts = [f"Predicted from {count} jobs: {len(prediction.points)} points of the grid that were not run."]
    for name, error in prediction.errors.items():
        off = f"{number(100 * error.median)} % off in the median, {number(100 * error.most)} % at most"
        guess = f"the mean of the others would be {number(100 * error.guess)} %"
        within = f"{error.within} of {count} lie within their 95 % interval"
        texts.append(f"Left out {_at_a_time(error)}, their {name} is {off} ({guess}); {within}.")
    texts += prediction.notes
    fastest = min(prediction.points, key=lambda point: point.time_s.value)
    texts.append(f"The fastest of them: {fastest.title}: {interval(fastest.time_s, fastest.time_s.value)} an epoch.")
    if metered := [point for point in prediction.points if point.power_w]:
        least = min(metered, key=_joules)
        texts.append(f"The least energy of them: {least.title}: {number(_joules(least))} J an epoch.")
    texts.append("Most would be learned, one after the other, from:")
    return [*texts, *(point.command for point in prediction.next_three)]


def grid(prediction: Prediction) -> Grid:
    """What is predicted, the fastest first."""
    ordered = sorted(prediction.points, key=lambda point: point.time_s.value)
    rows = [
        [point.title, spread(point.time_s), spread(point.power_w) if point.power_w else ABSENT, number(point.energy_j)]
        for point in ordered[:LISTED]
    ]
    some = f", the {LISTED} fastest of {len(ordered)}" if len(ordered) > LISTED else ", the fastest first"
    return Grid(f"Predicted, with 95 % intervals of {prediction.of}{some}", ["job", "s an epoch", "W", "J"], rows)


def values(prediction: Prediction | str) -> dict[str, Any]:
    """All of it in plain numbers, or why there is none."""
    if isinstance(prediction, str):
        return {"why_not": prediction}
    return {**asdict(prediction), "energies_j": [point.energy_j for point in prediction.points]}


# Of jobs, places: numbers from 0 to 1 for each key


class DependentKey(NamedTuple):
    """A key that was typed, and goes with another: `storage.root` with `storage`."""

    key: str
    leader: str
    values: Mapping[str, str]
    """Of the other -> its own."""


def _keys(measured: Sequence[Cost]) -> tuple[list[str], list[DependentKey]]:
    """The keys that a grid is made of: those that vary, but for repeats; and what was typed that goes with one of them.

    What was not typed is a key of its own where the others do not tell its value: `data_source` sets `cache`.
    """
    every = dict.fromkeys(key for cost in measured for row in cost.configuration.runs for key in row.keys)
    overridden = [key for key in every if key.partition(".")[0] not in NOT_THE_JOBS]
    varying = [key for key in overridden if len({_setting(cost, key) for cost in measured}) > 1]
    keys = list(varying)
    followers: list[DependentKey] = []
    for key in reversed(varying):
        led = ((other, _led(measured, other, key)) for other in keys if other != key)
        if follower := next((DependentKey(key, other, values) for other, values in led if values), None):
            keys.remove(key)
            followers.insert(0, follower)
    varied_groups = {key.partition(".")[0] for key in varying}
    for key in varied([cost.configuration for cost in measured]):
        if key.partition(".")[0] not in varied_groups and _values(measured, keys, key) is None:
            keys.append(key)
    return keys, followers


def _led(measured: Sequence[Cost], leader: str, key: str) -> dict[str, str] | None:
    """What one key is for each value of another; None where that does not tell it, or in too few jobs to go by."""
    values = _values(measured, [leader], key)
    return {value: its for (value,), its in values.items()} if values and len(measured) >= 2 * len(values) else None


def _values(known: Sequence[Cost], keys: Sequence[str], key: str) -> dict[tuple[str, ...], str] | None:
    """What a key is for each setting of others; None where these do not tell it."""
    values: dict[tuple[str, ...], str] = {}
    for cost in known:
        its = _setting(cost, key)
        if values.setdefault(tuple(_setting(cost, other) for other in keys), its) != its:
            return None
    return values


def _of(learned: Sequence[Cost]) -> str:
    runs = {len(cost.times_s) for cost in learned}
    if runs == {1}:
        return "a run"
    return f"the mean of {runs.pop()} runs" if len(runs) == 1 else "the mean of as many runs as these jobs have"


def _setting(cost: Cost, key: str) -> str:
    """What a key was typed as, or what it stood at."""
    keys = cost.configuration.runs[0].keys
    return keys[key] if key in keys else cost.configuration.value(key)


def _column(choices: Sequence[str]) -> dict[str, list[float]]:
    """Value of a key -> its place: on a logarithmic scale where all are numbers, else one of as many corners."""
    numbers = [_number(choice) for choice in choices]
    if all(math.isfinite(value) for value in numbers):
        scaled = [math.log(value) for value in numbers] if min(numbers) > 0 else numbers
        scaled = [math.log1p(value) for value in numbers] if min(numbers) == 0 else scaled
        low, high = min(scaled), max(scaled)
        if low == high:  # 8 and 8.0
            return {choice: [0.0] for choice in choices}
        return {choice: [(value - low) / (high - low)] for choice, value in zip(choices, scaled, strict=True)}
    if len(choices) == 2:
        return {choice: [float(index)] for index, choice in enumerate(choices)}
    return {choice: [float(choice == other) for other in choices] for choice in choices}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _place(point: Sequence[str], columns: Sequence[Mapping[str, list[float]]]) -> list[float]:
    return [coordinate for value, column in zip(point, columns, strict=True) for coordinate in column[value]]


def _drawn(measured: Sequence[Cost]) -> list[Cost]:
    """All, or as many as can be learned from, drawn at random: always the same ones."""
    chosen = sorted(random.Random(0).sample(range(len(measured)), min(len(measured), MOST_JOBS)))
    return [measured[index] for index in chosen]


# The process


def _learn(places: list[list[float]], learned: Sequence[Cost]) -> tuple[dict[str, Any], dict[str, Error], list[str]]:
    """Quantity -> (model, logarithms) and its error; and what to say of what is not predicted."""
    logs = {TIME: [math.log(cost.time_s) for cost in learned]}
    watts = [cost.power_w for cost in learned if cost.power_w]
    why = no_energy([cost.configuration for cost in learned])
    notes = []
    if why or len(watts) < len(learned):
        notes.append(f"No power is predicted: {(why or 'not all of these jobs have one').rstrip('.')}.")
    else:
        logs[POWER] = [math.log(watt) for watt in watts]
    models = {name: (fit(places, values), values) for name, values in logs.items()}
    errors = {name: cross_validate(places, values) for name, values in logs.items()}
    notes += [f"Not told: {_hardly(name, error)}." for name, error in errors.items() if not error.useful]
    return models, errors, notes


def _hardly(name: str, error: Error) -> str:
    off, guess = (f"{number(100 * share)} %" for share in (error.median, error.guess))
    return (
        f"left out {_at_a_time(error)}, jobs have their {name} predicted little better than by the mean of the others: "
        f"{off} off in the median, that {guess}"
    )


def _at_a_time(error: Error) -> str:
    return "one at a time" if error.parts == error.jobs else f"in {error.parts} parts, one at a time"


def _predicted(
    like: Cost, keys: Mapping[str, str], followers: Sequence[DependentKey], estimates: Mapping[str, Estimate]
) -> Predicted:
    title = ", ".join(f"{key} {value}" for key, value in keys.items())
    settings = dict(keys)
    for follower in followers:  # those that follow another follower after it
        settings[follower.key] = follower.values[settings[follower.leader]]
    return Predicted(title, keys, estimates[TIME], estimates.get(POWER), typed(like.configuration, settings))


def _joules(point: Predicted) -> float:
    return math.inf if point.energy_j is None else point.energy_j
