"""How well `report.predict=true` and `report.prior=` predict configurations that were not run, on published traces.

    PYTHONPATH=src:tests:benchmarks python benchmarks/decisions/predictions.py [folder] [--short]

Each grid is a workload on one GPU: time and mean power of an epoch by batch size and power limit (tests/data/zeus, or
another folder with files summary_power_<gpu>.csv). The other configurations are predicted from random runs. Jetsons
with many power modes are simulated (tests/simulated_boards.py), by equations that differ from the model.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common.output import ARGUMENTS, print_table, sized
from numpy.typing import NDArray
from simulated_boards import BOARDS, Board, Workload, measure, workload
from threadpoolctl import threadpool_limits

from epochmeter.report.analyses import physics
from epochmeter.report.analyses.design import choose_runs
from epochmeter.report.analyses.gaussian import (
    Grid,
    Model,
    cross_validate,
    encode,
    fit_weighted,
    smooth,
    with_energy,
)
from epochmeter.results.pareto import is_pareto_front

TRACES = Path(ARGUMENTS[0]) if ARGUMENTS else Path(__file__).parents[2] / "tests/data/zeus"
RUNS, MORE, SIZE = 6, 3, 40
DRAWS, BOARD_DRAWS, TESTED = sized(4, 1), sized(2, 1), sized(None, 1)
GAUSSIAN, PHYSICS, NEW_GPU, NEW_WORKLOAD = (
    "Gaussian process only", "no prior", "prior: other GPUs", "prior: other workloads",
)  # fmt: skip
NEW_BOARD = "prior: other boards"
WORKLOADS, MODE_RUNS, MODES_OF_PRIOR, MODE_BATCH = sized(2, 1), sized((6, 15, 50), (6, 15)), 50, 32
SMOOTH_FROM = 12
"""Smallest number of runs for which the Gaussian process is used in addition to the physics, as in the report."""
Array = NDArray[np.float64]
ERROR_COLUMNS = [
    f"{quantity}: {column}" for quantity in ("time", "power", "energy") for column in ("median", "mean", "95 % holds")
]
Methods = Mapping[str, Callable[["Trace", int], Mapping[str, Model]]]


class Trace(NamedTuple):
    """A grid with all of its times and powers."""

    device: str
    workload: str
    grid: Grid


def main() -> None:
    gpus = read_traces()[:: sized(1, 6)]
    chosen = gpus[:TESTED]
    methods = methods_of(gpus, {NEW_GPU: other_device, NEW_WORKLOAD: other_workload})
    print_table(
        f"Errors of the other configurations, predicted from {RUNS} random runs",
        ("method", "runs", "grids", *ERROR_COLUMNS),
        [accuracy_cells(name, chosen, models_of, RUNS, DRAWS) for name, models_of in methods.items()],
    )
    print_designs(f"{MORE} more runs, after {RUNS} random ones of {SIZE}", chosen, methods)
    boards = simulate_boards()
    methods = methods_of(boards, {NEW_BOARD: other_device, NEW_WORKLOAD: other_workload}, MODES_OF_PRIOR)
    print_table(
        "Errors of the power modes that were not run, on simulated boards",
        ("method", "runs", "grids", *ERROR_COLUMNS),
        [
            accuracy_cells(name, boards[:TESTED], models_of, runs, BOARD_DRAWS)
            for name, models_of in methods.items()
            for runs in MODE_RUNS
        ],
    )
    print_designs(
        f"{MORE} more power modes, after {RUNS} random ones of {SIZE}, on simulated boards", boards[:TESTED], methods
    )


def other_device(trace: Trace, other: Trace) -> bool:
    return other.device != trace.device


def other_workload(trace: Trace, other: Trace) -> bool:
    return other.workload != trace.workload


def methods_of(
    traces: Sequence[Trace], priors: Mapping[str, Callable[[Trace, Trace], bool]], most: int | None = None
) -> dict[str, Callable[[Trace, int], dict[str, Model]]]:
    """Return functions of a trace and a number of runs that give the models of each method.

    Args:
        priors: Name -> whether another trace is part of the prior of a trace.
        most: Number of configurations of each trace in a prior; None: all.
    """

    @cache
    def learned(numbers: tuple[int, ...]) -> physics.Population:
        samples = np.random.default_rng(0)
        return physics.learn([traces[n].grid[samples.permutation(len(traces[n].grid))[:most]] for n in numbers])

    def with_physics(is_in_prior: Callable[[Trace, Trace], bool] | None, trace: Trace, runs: int) -> dict[str, Model]:
        models: dict[str, Model] = {"smooth": smooth} if runs >= SMOOTH_FROM else {}
        models["physics"] = partial(physics.fit, physics.DEFAULT)
        if is_in_prior:
            numbers = tuple(number for number, other in enumerate(traces) if is_in_prior(trace, other))
            models["prior"] = partial(physics.fit, learned(numbers))
        return models

    return {
        GAUSSIAN: lambda trace, runs: {"smooth": smooth},
        PHYSICS: partial(with_physics, None),
        **{name: partial(with_physics, is_in_prior) for name, is_in_prior in priors.items()},
    }


def simulate_boards() -> list[Trace]:
    """Return simulated workloads on simulated boards, each in all power modes."""
    return [
        Trace(board.name, of.name, grid_of(board, of, seed))
        for seed, of in enumerate(map(workload, range(WORKLOADS)))
        for board in BOARDS[:: sized(1, 4)]
    ]


def grid_of(board: Board, of: Workload, seed: int) -> Grid:
    """Measure all power modes of a board, as the predictions have them."""
    noise, modes = np.random.default_rng(seed), board.modes()
    times_s, powers_w = np.array([measure(board, of, MODE_BATCH, mode, noise) for mode in modes]).T
    clocks = np.log(np.array(modes) / np.array(board.highest))
    coordinates = encode([(str(MODE_BATCH), *map(str, mode)) for mode in modes])
    rows = np.column_stack([[MODE_BATCH] * len(modes), [np.inf] * len(modes), clocks, coordinates])
    full_w = powers_w.max()
    return Grid(rows, [], np.log(np.stack([times_s, powers_w / full_w])), full_w, of.name, board.name)


def read_traces() -> list[Trace]:
    """Return all workloads of all GPUs."""
    traces = []
    for file in sorted(TRACES.glob("summary_power_*.csv")):
        rows: dict[str, list[list[float]]] = {}
        with file.open() as opened:
            for line in csv.DictReader(opened):
                names = ("batch_size", "power_limit", "time_per_epoch", "average_power")
                rows.setdefault(f"{line['network']} on {line['dataset']}", []).append([float(line[n]) for n in names])
        for name, numbers in rows.items():
            batches, limits, times, powers = np.array(numbers).T
            full_w = limits.max()
            places = encode(list(zip(map(str, batches), map(str, limits), strict=True)))
            logs = np.log(np.stack([times, powers / full_w]))
            grid = Grid(np.column_stack([batches, limits / full_w, places]), [], logs, full_w, name)
            traces.append(Trace(file.stem.removeprefix("summary_power_"), name, grid))
    return traces


def accuracy_cells(
    name: str, traces: Sequence[Trace], models_of: Callable[[Trace, int], Mapping[str, Model]], count: int, draws: int
) -> list[str]:
    """Return a row of a table of errors, of predictions from several draws of a number of runs."""
    errors: list[list[Array]] = [[], [], []]
    covered: list[list[Array]] = [[], [], []]
    for trace in traces:
        models = models_of(trace, count)
        for draw in range(draws):
            order = np.random.default_rng(draw).permutation(len(trace.grid))
            runs, others = trace.grid[order[:count]], trace.grid[order[count:]]
            weights, estimated = cross_validate(models, runs)
            means, deviations = fit_weighted(models, weights, runs)(others).marginals
            for row, (error, misses) in enumerate(zip(estimated, means - with_energy(others.logs), strict=True)):
                errors[row].append(np.abs(np.expm1(misses)))
                covered[row].append(np.abs(misses) <= error.half_widths(deviations[row]))
    cells = [name, str(count), f"{len(traces)} x {draws}"]
    for misses, within in zip(map(np.concatenate, errors), map(np.concatenate, covered), strict=True):
        cells += [f"{np.median(misses):.1%}", f"{np.mean(misses):.1%}", f"{np.mean(within):.1%}"]
    return cells


def print_designs(title: str, traces: Sequence[Trace], methods: Methods) -> None:
    """Print a table of the errors after further runs, random ones or those that are proposed."""
    print_table(
        title,
        ("method", "runs", "mean error", "reduced by", "near the front", "reduced by", "hypervolume", "logarithms"),
        [row for name in methods if name != GAUSSIAN for row in design_cells(name, traces, methods[name])],
    )


def design_cells(
    name: str, traces: Sequence[Trace], models_of: Callable[[Trace, int], Mapping[str, Model]]
) -> list[list[str]]:
    """Return the rows of a method: after the first runs, with random ones, and with the proposed ones."""
    results: dict[str, list[list[float]]] = {"first": [], "random": [], "proposed": []}
    for trace in traces:
        models = models_of(trace, RUNS)
        for draw in range(DRAWS):
            order = np.random.default_rng(draw).permutation(len(trace.grid))[:SIZE]
            grid, first = trace.grid[order], np.arange(RUNS)
            weights, _ = cross_validate(models, grid[first])
            posterior = fit_weighted(models, weights, grid[first])(grid[RUNS:])
            proposed = RUNS + np.array(choose_runs(posterior, grid.logs[:, :RUNS], MORE))
            chosen = {"first": [], "random": RUNS + np.arange(MORE), "proposed": proposed}
            others = np.setdiff1d(np.arange(RUNS, len(grid)), np.concatenate([chosen["random"], proposed]))
            for label, more in chosen.items():
                runs = np.array([*first, *more])
                weights, _ = cross_validate(models, grid[runs])
                results[label].append(
                    outcome(fit_weighted(models, weights, grid[runs])(grid).means, grid, runs, others)
                )
    means = {label: np.mean(rows, axis=0) for label, rows in results.items()}
    medians = {label: np.median(rows, axis=0) for label, rows in results.items()}
    rows = []
    for label, (error, near, *_) in means.items():
        cells = [name, label]
        for value, start in ((error, means["first"][0]), (near, means["first"][1])):
            cells += [f"{value:.2%}", "" if label == "first" else f"{start - value:.2%}"]
        rows.append([*cells, *(f"{volume:.1%}" for volume in medians[label][2:])])
    return rows


def outcome(means: Array, grid: Grid, runs: Array, others: Array) -> list[float]:
    """Return the mean error of the other configurations, and of those on the front (0 if they were run).

    Then the hypervolume that the runs dominate, relative to that of all configurations, of times and energies and of
    their logarithms. The reference point is the largest time and the largest energy of the grid.
    """
    times, energies = grid.logs[0], grid.logs.sum(axis=0)
    errors = np.abs(means - grid.logs).mean(axis=0)
    errors[runs] = 0.0
    on_front = np.array(is_pareto_front(zip(times.tolist(), energies.tolist(), strict=True)))
    volumes = []
    for scale in (np.exp, np.asarray):
        points = scale(np.stack([times, energies], axis=1))
        volumes.append(hypervolume(points[runs], points.max(axis=0)) / hypervolume(points, points.max(axis=0)))
    return [errors[others].mean(), errors[on_front].mean(), *volumes]


def hypervolume(points: Array, reference: Array) -> float:
    """Return the area that points dominate up to the reference point."""
    area, lowest = 0.0, reference[1]
    for time, energy in sorted(map(tuple, points)):
        area += (reference[0] - time) * max(0.0, lowest - energy)
        lowest = min(lowest, energy)
    return float(area)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
