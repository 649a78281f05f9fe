"""Predict time and power of configurations in the grid that were not run, and suggest runs that improve the prediction.

Time and power each have a Gaussian process on their logarithms, over the keys that vary. Errors are cross-validated.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from epochmeter.report.analyses.gaussian import Error, cross_validate, fit, most_informative, predict_at
from epochmeter.report.analyses.next_runs import command_line
from epochmeter.report.formatting import interval, number, plural, quantity
from epochmeter.report.runs.configuration import NON_CONFIG_KEYS, Configuration, no_energy, varied
from epochmeter.report.runs.costs import Cost, costs
from epochmeter.report.statistics import Estimate
from epochmeter.report.words import Grid

MIN_CONFIGURATIONS, MAX_CONFIGURATIONS = 6, 100
"""A prediction needs the minimum; of more than the maximum, a random sample is used."""
PER_COORDINATE = 2
"""Configurations needed per coordinate of a grid point."""
MOST_GRID = 10_000
NEXT_RUNS = 3
MAX_ROWS = 10
"""Predictions in the table; the JSON file has all."""
IGNORED_KEYS = (*NON_CONFIG_KEYS, "hydra")
TIME, POWER = "time", "power"


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
        of: What the intervals are of: a run, or the mean of several runs.
    """

    points: Sequence[Predicted]
    errors: Mapping[str, Error]
    next_three: Sequence[Predicted]
    of: str
    notes: Sequence[str] = ()


def predict(configurations: Sequence[Configuration]) -> Prediction | str:
    """Predict the configurations of the grid of varying keys that were not run; else return why not."""
    measured = costs(configurations)
    (keys, followers), hosts = _keys(measured), dict.fromkeys(cost.configuration.host or "unknown" for cost in measured)
    if len(hosts) > 1:
        one = f"where={{host: {next(iter(hosts))}}}"
        return f"the configurations ran on {len(hosts)} hosts; hint: select one host with {one}"
    if len(measured) < MIN_CONFIGURATIONS:
        return f"only {plural(len(measured), 'configuration')} with a time; {MIN_CONFIGURATIONS} are needed"
    if not keys:
        return "the configurations do not differ in any key"
    choices = [list(dict.fromkeys(_setting(cost, key) for cost in measured)) for key in keys]
    count = math.prod(map(len, choices))
    if count > MOST_GRID:
        return f"the grid of {', '.join(keys)} has {count:,} configurations; hint: select some of the runs with where="
    run = {tuple(_setting(cost, key) for key in keys) for cost in measured}
    if len(run) < len(measured):
        return (
            f"some configurations do not differ in {', '.join(keys)} but in other keys; hint: select runs with where="
        )
    missing = [point for point in itertools.product(*choices) if point not in run]
    if not missing:
        return f"all configurations of the grid of {', '.join(keys)} were run"
    columns = list(map(_column, choices))
    if len(measured) < (needed := PER_COORDINATE * sum(len(next(iter(column.values()))) for column in columns)):
        return f"only {len(measured)} configurations; {needed} are needed to fit {', '.join(keys)}"
    fitted = _sample(measured)
    places = [_place(tuple(_setting(cost, key) for key in keys), columns) for cost in fitted]
    grid = [_place(point, columns) for point in missing]
    models, errors, notes = _fit(places, fitted)
    if len(fitted) < len(measured):
        notes.insert(0, f"Fitted to a random sample of {len(fitted)} of {len(measured)} configurations.")
    if not errors[TIME].is_useful:
        return _inaccurate(TIME, errors[TIME])
    models, errors = ({name: kept[name] for name in kept if errors[name].is_useful} for kept in (models, errors))
    estimates = {name: predict_at(model, grid, errors[name].width) for name, (model, _) in models.items()}
    predicted = [
        _predicted(
            measured[0],
            dict(zip(keys, point, strict=True)),
            followers,
            {name: values[index] for name, values in estimates.items()},
        )
        for index, point in enumerate(missing)
    ]
    informative = most_informative(models, places, grid, NEXT_RUNS)
    return Prediction(predicted, errors, [predicted[index] for index in informative], _of(fitted), notes)


def sentences(prediction: Prediction | str) -> list[str]:
    """Return the sentences on a prediction, its errors first; or why there is none."""
    if isinstance(prediction, str):
        return [f"No prediction: {prediction}."]
    count = prediction.errors[TIME].configurations
    texts = [f"Predicted from {count} configurations: {len(prediction.points)} configurations that were not run."]
    for name, error in prediction.errors.items():
        texts.append(
            f"Cross-validated error of {name} ({_method(error)}): median {number(100 * error.median)} %, "
            f"maximum {number(100 * error.most)} %; {number(100 * error.guess)} % if predicted by the mean. "
            f"{error.within} of {count} are within their 95 % interval."
        )
    texts += prediction.notes
    fastest = min(prediction.points, key=lambda point: point.time_s.value)
    texts.append(f"Fastest prediction: {fastest.title}: {interval(fastest.time_s, 's')} per epoch.")
    if metered := [point for point in prediction.points if point.power_w]:
        least = min(metered, key=_joules)
        texts.append(f"Least predicted energy: {least.title}: {quantity(_joules(least), 'J')} per epoch.")
    texts.append("The most informative next runs, in this order:")
    return [*texts, *(point.command for point in prediction.next_three)]


def grid(prediction: Prediction) -> Grid:
    """Return the table of predictions, the fastest first."""
    ordered = sorted(prediction.points, key=lambda point: point.time_s.value)
    rows = [
        [point.title, interval(point.time_s, "s"), interval(point.power_w, "W"), quantity(point.energy_j, "J")]
        for point in ordered[:MAX_ROWS]
    ]
    some = f", the {MAX_ROWS} fastest of {len(ordered)}" if len(ordered) > MAX_ROWS else ", the fastest first"
    return Grid(
        f"Predicted, with 95 % intervals of {prediction.of}{some}",
        ["configuration", "time per epoch", "power", "energy"],
        rows,
    )


def values(prediction: Prediction | str) -> dict[str, Any]:
    """Return all numbers for the JSON file, or why there are none."""
    if isinstance(prediction, str):
        return {"why_not": prediction}
    return {**asdict(prediction), "energies_j": [point.energy_j for point in prediction.points]}


# Coordinates of configurations: numbers from 0 to 1 for each key


class DependentKey(NamedTuple):
    """A key determined by another one: `storage.root` by `storage`; `values` maps the leader's to its own."""

    key: str
    leader: str
    values: Mapping[str, str]


def _keys(measured: Sequence[Cost]) -> tuple[list[str], list[DependentKey]]:
    """Return the keys of the grid, and the overridden keys that follow from one of them.

    A key that was not overridden is part of the grid if the others do not determine it: `data_source` sets `cache`.
    """
    every = dict.fromkeys(key for cost in measured for row in cost.configuration.runs for key in row.keys)
    overridden = [key for key in every if key.partition(".")[0] not in IGNORED_KEYS]
    varying = [key for key in overridden if len({_setting(cost, key) for cost in measured}) > 1]
    keys = list(varying)
    followers: list[DependentKey] = []
    for key in reversed(varying):
        led = ((other, _determined(measured, other, key)) for other in keys if other != key)
        if follower := next((DependentKey(key, other, values) for other, values in led if values), None):
            keys.remove(key)
            followers.insert(0, follower)
    varied_groups = {key.partition(".")[0] for key in varying}
    for key in varied([cost.configuration for cost in measured]):
        if key.partition(".")[0] not in varied_groups and _values(measured, keys, key) is None:
            keys.append(key)
    return keys, followers


def _determined(measured: Sequence[Cost], leader: str, key: str) -> dict[str, str] | None:
    """Return a key's value for each value of another; None if undetermined, or in too few configurations."""
    values = _values(measured, [leader], key)
    return {value: its for (value,), its in values.items()} if values and len(measured) >= 2 * len(values) else None


def _values(measured: Sequence[Cost], keys: Sequence[str], key: str) -> dict[tuple[str, ...], str] | None:
    """Return a key's value for each setting of other keys; None if these do not determine it."""
    values: dict[tuple[str, ...], str] = {}
    for cost in measured:
        its = _setting(cost, key)
        if values.setdefault(tuple(_setting(cost, other) for other in keys), its) != its:
            return None
    return values


def _of(fitted: Sequence[Cost]) -> str:
    runs = {len(cost.times_s) for cost in fitted}
    if runs == {1}:
        return "a run"
    return f"the mean of {runs.pop()} runs" if len(runs) == 1 else "the mean of the runs of a configuration"


def _setting(cost: Cost, key: str) -> str:
    """Return a key's value as overridden, or else as configured."""
    keys = cost.configuration.runs[0].keys
    return keys[key] if key in keys else cost.configuration.value(key)


def _column(choices: Sequence[str]) -> dict[str, list[float]]:
    """Return the coordinates of a key's values: one on a logarithmic scale for numbers, else one-hot."""
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


def _sample(measured: Sequence[Cost]) -> list[Cost]:
    """Return all, or a random sample with a fixed seed."""
    chosen = sorted(random.Random(0).sample(range(len(measured)), min(len(measured), MAX_CONFIGURATIONS)))
    return [measured[index] for index in chosen]


# Gaussian processes


def _fit(places: list[list[float]], fitted: Sequence[Cost]) -> tuple[dict[str, Any], dict[str, Error], list[str]]:
    """Return the fitted processes with their data, their errors, and notes on quantities that are not predicted."""
    logs = {TIME: [math.log(cost.time_s) for cost in fitted]}
    watts = [cost.power_w for cost in fitted if cost.power_w]
    why = no_energy([cost.configuration for cost in fitted])
    notes = []
    if why or len(watts) < len(fitted):
        notes.append(f"No power is predicted: {(why or 'not all configurations have one').rstrip('.')}.")
    else:
        logs[POWER] = [math.log(watt) for watt in watts]
    models = {name: (fit(places, values), values) for name, values in logs.items()}
    errors = {name: cross_validate(places, values) for name, values in logs.items()}
    notes += [f"Not predicted: {_inaccurate(name, error)}." for name, error in errors.items() if not error.is_useful]
    return models, errors, notes


def _inaccurate(name: str, error: Error) -> str:
    errors = f"median error {number(100 * error.median)} %, {number(100 * error.guess)} % by the mean"
    return f"{name} is predicted hardly better than by the mean ({_method(error)}: {errors})"


def _method(error: Error) -> str:
    return "leave-one-out" if error.folds == error.configurations else f"{error.folds}-fold"


def _predicted(
    like: Cost, keys: Mapping[str, str], followers: Sequence[DependentKey], estimates: Mapping[str, Estimate]
) -> Predicted:
    title = ", ".join(f"{key} {value}" for key, value in keys.items())
    settings = dict(keys)
    for follower in followers:  # a dependent key follows its leader in the list
        settings[follower.key] = follower.values[settings[follower.leader]]
    return Predicted(title, keys, estimates[TIME], estimates.get(POWER), command_line(like.configuration, settings))


def _joules(point: Predicted) -> float:
    return math.inf if point.energy_j is None else point.energy_j
