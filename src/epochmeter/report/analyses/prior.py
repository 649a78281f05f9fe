"""Read time and power of earlier sweeps by batch size and power limit or power mode."""

import math
import random
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from epochmeter.report.analyses.gaussian import Grid, encode
from epochmeter.report.runs.configuration import Configuration, group_repeats, groups, without_synthetic
from epochmeter.report.runs.costs import HIGHEST, LIMIT, Cost, costs, positive_values
from epochmeter.report.runs.filter import select
from epochmeter.report.runs.run import Sweep

BATCH, POWER_LIMIT = "batch", "power_limit"
MIN_CONFIGURATIONS, MAX_CONFIGURATIONS = 4, 100
"""Workloads of earlier sweeps with fewer are not used; of more, a random sample is."""
MAX_WORKLOADS = 50  # of more workloads in earlier sweeps, the last are used
FEW, NO_CLOCKS, UNREADABLE = "few", "clocks", "unreadable"
"""Reasons why records and configurations are not used, in addition to the kinds of runs that are not results."""
Column = Sequence[str]  # a key's value in each configuration


@dataclass(frozen=True)
class Prior:
    """Workloads of earlier sweeps, each with time and, if it was measured, power.

    Attributes:
        left_out: Reason and its details -> number of records or configurations that are not used.
    """

    grids: Sequence[Grid]
    left_out: Mapping[tuple[str, str], int]

    @property
    def values(self) -> dict[str, object]:
        return {
            "workloads": len(self.grids),
            "configurations": sum(map(len, self.grids)),
            "without_power": sum(len(grid.logs) == 1 for grid in self.grids),
            "left_out": [
                {"reason": kind, "details": details, "count": count} for (kind, details), count in self.left_out.items()
            ],
        }


def read_prior(sweep: Sweep, own_runs: Container[str] = ()) -> Prior:
    """Group the results of sweeps by host and workload, without the runs named in `own_runs`."""
    selection = select(sweep)
    runs = [run for run in selection.runs if run.name not in own_runs]
    left_out = selection.exclusions
    left_out.update((UNREADABLE, why) for why in sweep.unreadable.values())
    grids = []
    for group in groups(group_repeats(without_synthetic(runs)), (BATCH, POWER_LIMIT)):
        measured = costs(group)
        metered = [cost for cost in measured if cost.power_w]
        used = metered if len(metered) >= MIN_CONFIGURATIONS else measured
        limits = [cost.configuration.value(POWER_LIMIT) for cost in used]
        if len(used) < MIN_CONFIGURATIONS:
            left_out[FEW, str(MIN_CONFIGURATIONS)] += len(group)
        elif len(set(limits)) > 1 and not physical_keys({POWER_LIMIT: limits}, bool(mode_clocks(used))):
            left_out[NO_CLOCKS, ""] += len(group)
        else:
            sample = sorted(random.Random(0).sample(range(len(used)), min(len(used), MAX_CONFIGURATIONS)))
            grids.append(to_grid([used[index] for index in sample]))
    return Prior(grids[-MAX_WORKLOADS:], left_out)


def to_grid(measured: Sequence[Cost], columns: Mapping[str, Column] | None = None) -> Grid:
    """Return the measured configurations, followed by those of `columns` that were not run.

    `columns` has the values of all keys that vary, in the same order of configurations.
    """
    first, modes, columns = measured[0].configuration, mode_clocks(measured), columns or {}
    count, size = len(measured), max([len(measured), *map(len, columns.values())])

    def column(key: str, of_run: Callable[[Cost], Any], of_value: Callable[[str], Any]) -> list[Any]:
        runs = [of_run(cost) for cost in measured]
        return runs + ([*map(of_value, columns[key][count:])] if key in columns else runs[:1] * (size - count))

    batches = column(BATCH, lambda cost: _number(cost.configuration.value(BATCH), 1.0), lambda text: _number(text, 1.0))
    limits_w = column(POWER_LIMIT, _limit_w, lambda text: _number(text, math.inf))
    clocks, relative_clocks = [], []
    if modes:
        limits_w = [math.inf] * size
        clocks = column(POWER_LIMIT, _clocks, modes.__getitem__)
        relative_clocks = np.log(np.array(clocks) / np.max([*modes.values()], axis=0)).T.tolist()
    devices = first.runs[0].power_limited_devices or first.devices or 1
    powers_w = [cost.power_w / devices for cost in measured if cost.power_w]
    has_power = len(powers_w) == count
    highest = [] if modes else [watts for cost in measured for watts in positive_values(cost.configuration, HIGHEST)]
    full_w = max([*highest, *filter(math.isfinite, limits_w)], default=max(powers_w) if has_power else 1.0)
    logs = np.full((1 + has_power, size), math.nan)
    logs[0, :count] = np.log([cost.time_s for cost in measured])
    logs[1:, :count] = np.log(powers_w) - math.log(full_w) if has_power else 0.0
    numbers = [batches, [limit_w / full_w for limit_w in limits_w], *relative_clocks]
    physical, others = physical_keys(columns, bool(modes)), list[int]()
    for key, values in columns.items():
        is_mode = key == POWER_LIMIT and modes
        block = encode([[str(clock) for clock in mode] for mode in clocks] if is_mode else [[text] for text in values])
        if key not in physical:
            others += range(len(numbers), len(numbers) + block.shape[1])
        numbers += block.T.tolist()
    return Grid(
        rows=np.column_stack(numbers),
        other_columns=others,
        logs=logs,
        full_w=devices * full_w,
        workload=f"{first.value('model')} on {first.value('dataset')}",
        board=first.runs[0].board if modes else "",
    )


def mode_clocks(measured: Sequence[Cost]) -> dict[str, Sequence[float]]:
    """Return the clocks of all power modes, by name and by the values of `power_limit` of the runs.

    Empty if the clocks are unknown, or if a reboot between the runs switched parts of the GPU on or off.
    """
    runs = [run for cost in measured for run in cost.configuration.runs]
    modes = runs[0].mode_clocks
    if not modes or any(run.mode_clocks.keys() != modes.keys() for run in runs):
        return {}
    return {**modes, **{setting(cost.configuration, POWER_LIMIT): _clocks(cost) for cost in measured}}


def setting(configuration: Configuration, key: str) -> str:
    """Return a key's value as overridden, or else as configured."""
    return configuration.runs[0].keys.get(key) or configuration.value(key)


def physical_keys(columns: Mapping[str, Column], has_modes: bool) -> list[str]:
    """Return the keys whose values are batch sizes, power limits, or power modes with clocks."""
    keys = []
    for key in {BATCH, POWER_LIMIT}.intersection(columns):
        are_numbers = [_number(text, 0.0) > 0 or (text == "null" and key == POWER_LIMIT) for text in columns[key]]
        if all(are_numbers) or (key == POWER_LIMIT and has_modes):
            keys.append(key)
    return keys


def _clocks(cost: Cost) -> Sequence[float]:
    run = cost.configuration.runs[0]
    return run.mode_clocks[run.mode]


def _limit_w(cost: Cost) -> float:
    """Return the limit per device, of `auto` the one that was chosen; infinite without a limit in watts."""
    value, chosen = cost.configuration.value(POWER_LIMIT), positive_values(cost.configuration, LIMIT)
    return max(chosen) if value == "auto" and chosen else _number(value, math.inf)


def _number(text: str, otherwise: float) -> float:
    """Return a positive number; `otherwise` for other texts."""
    try:
        number = float(text)
    except ValueError:
        return otherwise
    return number if 0 < number < math.inf else otherwise
