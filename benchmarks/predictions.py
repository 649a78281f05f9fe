"""How well `report.predict=true` and `report.prior=` predict configurations that were not run, on published traces.

    PYTHONPATH=src:tests python benchmarks/predictions.py [folder] [--short]

Each grid is a workload on one GPU: time and mean power of an epoch by batch size and power limit (tests/data/zeus, or
another folder with files summary_power_<gpu>.csv). The other configurations are predicted from random runs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from output import ARGUMENTS, print_table, sized
from threadpoolctl import threadpool_limits

from epochmeter.report.analyses import physics
from epochmeter.report.analyses.front import choose_runs
from epochmeter.report.analyses.gaussian import Grid, Model, cross_validate, encode, fit_weighted, smooth
from epochmeter.results.pareto import is_pareto_front

TRACES = Path(ARGUMENTS[0]) if ARGUMENTS else Path(__file__).parents[1] / "tests/data/zeus"
RUNS, MORE, SIZE = 6, 3, 40
DRAWS = sized(4, 1)
GAUSSIAN, PHYSICS, NEW_GPU, NEW_WORKLOAD = (
    "Gaussian process only", "no prior", "prior: other GPUs", "prior: other workloads",
)  # fmt: skip
Array = NDArray[np.float64]


class Trace(NamedTuple):
    """A grid with all of its times and powers."""

    gpu: str
    workload: str
    grid: Grid


def main() -> None:
    traces = read_traces()
    chosen = traces[:: sized(1, 18)]
    methods = {
        GAUSSIAN: lambda trace: {"smooth": smooth},
        PHYSICS: lambda trace: with_physics(()),
        NEW_GPU: lambda trace: with_physics(tuple(n for n, other in enumerate(traces) if other.gpu != trace.gpu)),
        NEW_WORKLOAD: lambda trace: with_physics(
            tuple(n for n, other in enumerate(traces) if other.workload != trace.workload)
        ),
    }

    @cache
    def learned(numbers: tuple[int, ...]) -> physics.Population:
        return physics.learn([traces[number].grid for number in numbers])

    def with_physics(numbers: tuple[int, ...]) -> dict[str, Model]:
        models: dict[str, Model] = {"physics": partial(physics.fit, physics.DEFAULT)}
        return {**models, "prior": partial(physics.fit, learned(numbers))} if numbers else models

    print_table(
        f"Errors of the other configurations, predicted from {RUNS} random runs",
        ("method", "grids", "time: median", "90th pct.", "95 % holds", "power: median", "90th pct.", "95 % holds"),
        [accuracy_cells(name, chosen, models_of) for name, models_of in methods.items()],
    )
    print_table(
        f"{MORE} more runs, after {RUNS} random ones of {SIZE}",
        ("method", "runs", "mean error", "reduced by", "near the front", "reduced by", "hypervolume", "logarithms"),
        [
            row
            for name, models_of in methods.items()
            if name != GAUSSIAN
            for row in design_cells(name, chosen, models_of)
        ],
    )


def read_traces() -> list[Trace]:
    """Return all workloads of all GPUs."""
    traces = []
    for file in sorted(TRACES.glob("summary_power_*.csv")):
        rows: dict[str, list[list[float]]] = {}
        with file.open() as opened:
            for line in csv.DictReader(opened):
                names = ("batch_size", "power_limit", "time_per_epoch", "average_power")
                rows.setdefault(f"{line['network']} on {line['dataset']}", []).append([float(line[n]) for n in names])
        for workload, numbers in rows.items():
            batches, limits, times, powers = np.array(numbers).T
            full_w = limits.max()
            places = encode(list(zip(map(str, batches), map(str, limits), strict=True)))
            logs = np.log(np.stack([times, powers / full_w]))
            grid = Grid(np.column_stack([batches, limits / full_w, places]), [], logs, full_w, workload)
            traces.append(Trace(file.stem.removeprefix("summary_power_"), workload, grid))
    return traces


def accuracy_cells(name: str, traces: Sequence[Trace], models_of: Callable[[Trace], Mapping[str, Model]]) -> list[str]:
    """Return a row of the first table."""
    errors: list[list[Array]] = [[], []]
    covered: list[list[Array]] = [[], []]
    for trace in traces:
        models = models_of(trace)
        for draw in range(DRAWS):
            order = np.random.default_rng(draw).permutation(len(trace.grid))
            runs, others = trace.grid[order[:RUNS]], trace.grid[order[RUNS:]]
            weights, estimated = cross_validate(models, runs)
            means, deviations = fit_weighted(models, weights, runs)(others).marginals
            for row, error in enumerate(estimated):
                misses = means[row] - others.logs[row]
                errors[row].append(np.abs(np.expm1(misses)))
                covered[row].append(np.abs(misses) <= error.width * deviations[row])
    cells = [name, f"{len(traces)} x {DRAWS}"]
    for misses, within in zip(map(np.concatenate, errors), map(np.concatenate, covered), strict=True):
        cells += [f"{np.median(misses):.1%}", f"{np.percentile(misses, 90):.1%}", f"{np.mean(within):.1%}"]
    return cells


def design_cells(
    name: str, traces: Sequence[Trace], models_of: Callable[[Trace], Mapping[str, Model]]
) -> list[list[str]]:
    """Return the rows of the second table: after the first runs, with random ones, and with the proposed ones."""
    results: dict[str, list[list[float]]] = {"first": [], "random": [], "proposed": []}
    for trace in traces:
        models = models_of(trace)
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
