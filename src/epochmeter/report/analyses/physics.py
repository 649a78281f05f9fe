"""A model of time and power by batch size, power limit and the clocks of a power mode, with parameters of a population.

A workload computes for a fraction of the time, its duty, and draws idle power otherwise. While it computes, it draws
its peak power or the limit. Throughput and duty saturate in the batch size. A limit below the peak power slows down the
computing. The clocks of a power mode act on the same parts. Computing is limited by the clock of the GPU or of the
memory, as in a roofline. The rest is limited by the cores and their clock; both may overlap. Power of cores and GPU
increases as their clock times the squared voltage, which increases with the clock. Memory power increases as its clock.

Parameters are normally distributed over workloads (a hierarchical model; A. Gelman et al., Bayesian Data Analysis,
2013). Deviations from the model are a Gaussian process, correlated with those of the workload in other sweeps. The
posterior is computed for the model linearized at the most probable parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from epochmeter.report.analyses.gaussian import Array, Grid, Posterior, Predictor

PARAMETERS = {
    "level": (0.0, 3.0),  # time of an epoch of large batches, relative to the mean of the runs
    "half": (2.8, 2.5),  # batch size with half of the throughput
    "large": (9.0, 3.0),  # batch size with twice the time, as with padded samples
    "fading": (0.5, 0.7),  # decrease of the duty with that of the throughput
    "duty": (1.0, 1.2),  # duty of large batches, as log odds
    "peak": (-0.2, 0.3),  # power while computing, as a fraction of the highest limit
    "idle": (-1.4, 0.4),  # power otherwise
    "slope": (0.0, 0.8),  # increase of the computing time with the excess of the peak power over the limit
    "knee": (0.2, 0.3),  # excess from which on the time increases, and the range over which the increase begins
    "bend": (-1.9, 0.5),
    "memory": (-0.7, 0.8),  # time of memory accesses relative to that of the GPU's arithmetic, at the highest clocks
    "ridge": (0.5, 0.5),  # sharpness of the change from one limit to the other
    "overlap": (-0.7, 0.7),  # the same for computing and the rest
    "scaling": (-0.5, 1.0),  # decrease of the rest with the number of cores, as log odds of an exponent
    "floor": (-0.4, 0.7),  # fraction of the power while computing that does not depend on the GPU's clock, as log odds
    "cpu": (-0.7, 0.8),  # power of the cores and of the memory, relative to the power that depends on no clock
    "dram": (-1.0, 0.8),
    "voltage": (0.3, 0.7),  # lowest voltage relative to the highest, as log odds
}
"""Mean and standard deviation of logarithms, without earlier sweeps. Chosen on the traces in tests/data/zeus."""
DEVIATIONS = ((0.1, 0.1, 0.05, 1.0, 0.02), (0.05, 0.05, 0.03, 0.4, 0.015))
"""Standard deviations from the model, of the logarithms of time and power: by batch size, limit, both and other keys,
and of the measurement."""
LENGTHS = (1.5, 0.3, 0.5)
"""Length scales of the deviations: logarithms of batch size and limit, and other keys from 0 to 1."""
CLOCK_LENGTH, ON_CLOCKS = 0.8, 0.5
"""Length scale for logarithms of clocks, and deviations by clocks relative to those by limit. Chosen on simulations."""
SOFTNESS = 0.08  # range of the limit's logarithm in which the power begins to decrease
SAME_WORKLOAD, MAX_SAME = 0.6, 4
"""Correlation of the deviations, and the number of other sweeps with the same workload that are used."""
SCALE, OF_SCALE = 0.4, ("peak", "idle")
"""Standard deviation of the power at the highest clocks, relative to the runs, and the parameters that it changes."""
PSEUDO_WORKLOADS = (1.0, 8.0)  # workloads that the default mean and the default covariance count for
STEP = 1e-5  # for derivatives
MIN_REST = 1e-9  # smallest fraction of the time that is not computing


@dataclass(frozen=True)
class Population:
    """Distribution of the parameters, with the workloads that it was learned from and their parameters."""

    mean: Array
    covariance: Array
    grids: Sequence[Grid] = ()
    parameters: Sequence[Array] = ()


_MEANS, _STDS = (np.array(values) for values in zip(*PARAMETERS.values(), strict=True))
DEFAULT = Population(_MEANS, np.diag(_STDS**2))


def mean_logs(parameters: Array, grid: Grid) -> Array:
    """Return the logarithms of time and, if the grid has power, of power, one row each.

    Parameters of shape (K, 1) each give rows of shape (K, configurations).
    """
    level, half, large, fading, duty, peak, idle, slope, knee, bend, *of_clocks = parameters
    batch, excess = np.log(grid.batches), peak - np.log(grid.limits)
    waiting = _softplus(half - batch)  # log(1 + half / batch)
    computing, resting = -_softplus(fading * waiting - duty), -_softplus(duty - fading * waiting)
    slowdown = np.exp(slope) * _softplus(excess - knee, np.exp(bend))
    of_time, of_duty, of_idle, of_active = _clock_effects(of_clocks, grid.clocks, resting, computing + slowdown)
    time = level + np.logaddexp(waiting, batch - large) + np.logaddexp(resting, computing + slowdown) + of_time
    busy = np.minimum(computing + of_duty, -MIN_REST)
    rest = idle + of_idle + np.log(-np.expm1(busy))
    active = peak + of_active - _softplus(excess, SOFTNESS)
    return np.stack([time, np.logaddexp(rest, busy + active)])[: len(grid.logs)]


def _clock_effects(parameters: Sequence[Array], clocks: Array, rest: Array, computing: Array) -> tuple[Array, ...]:
    """Return logarithms of factors, 0 at the highest clocks: on time, duty, idle power and power while computing."""
    memory, ridge, overlap, scaling, floor, cpu_power, dram_power, voltage = parameters
    cores, cpu, gpu, dram = clocks.T
    roof, together = 1 + np.exp(ridge), 1 + np.exp(overlap)
    slower_gpu = _norm(-gpu, memory - dram, roof) - _norm(0.0, memory, roof)
    slower_rest = -cpu - cores * np.exp(-_softplus(-scaling))
    time = _norm(rest + slower_rest, computing + slower_gpu, together) - _norm(rest, computing, together)
    of_cpu, of_dram = cpu_power + cores + _switching(cpu, voltage), dram_power + dram
    idle = _norm(np.logaddexp(0.0, of_cpu), of_dram) - _norm(np.logaddexp(0.0, cpu_power), dram_power)
    active = np.logaddexp(idle - _softplus(-floor), _switching(gpu, voltage) - _softplus(floor))
    return time, slower_gpu - time, idle, active


def _norm(first: Any, second: Any, order: Any = 1.0) -> Array:
    """Return the logarithm of the norm of two values, from their logarithms: of order 1, that of their sum."""
    norm: Array = np.logaddexp(order * first, order * second) / order
    return norm


def _switching(clock: Array, voltage: Array) -> Array:
    """Return the logarithm of the clock times the voltage squared, relative to those at the highest clock."""
    lowest = np.exp(-_softplus(-voltage))
    switching: Array = clock + 2 * np.log(lowest + (1 - lowest) * np.exp(clock))
    return switching


def learn(grids: Sequence[Grid]) -> Population:
    """Return the population of some workloads: their most probable parameters, with the default as prior."""
    fits = [_most_probable(DEFAULT, grid) for grid in grids]
    count, (few_means, few_covariances) = len(grids), PSEUDO_WORKLOADS
    mean = (sum(best for best, _ in fits) + few_means * DEFAULT.mean) / (count + few_means)
    spread = sum(np.outer(best - mean, best - mean) + uncertainty for best, uncertainty in fits)
    covariance = (spread + few_covariances * DEFAULT.covariance) / (count + few_covariances)
    return Population(mean, covariance, grids, [best for best, _ in fits])


def fit(population: Population, grid: Grid) -> Predictor:
    """Fit the runs of a workload that is drawn from a population."""
    mean, covariance = _with_level(population, grid)
    best, _ = _most_probable(population, grid)

    def predict(target: Grid) -> Posterior:
        rows, logs = np.concatenate([grid.rows, target.rows]), np.hstack([grid.logs, target.logs])
        every = replace(grid, rows=rows, logs=logs)
        is_run = np.tile(np.arange(len(every)) < len(grid), len(grid.logs))
        expected, deviations = _deviations(population, every)
        jacobian = _jacobian(best, every)
        prior = mean_logs(best, every).ravel() + jacobian @ (mean - best) + expected
        joint = jacobian @ covariance @ jacobian.T + deviations
        cross, of_runs = joint[~is_run][:, is_run], joint[is_run][:, is_run]
        gain = np.linalg.solve(of_runs, cross.T).T
        means = prior[~is_run] + gain @ (grid.logs.ravel() - prior[is_run])
        return Posterior(means.reshape(len(grid.logs), -1), joint[~is_run][:, ~is_run] - gain @ cross.T)

    return predict


def _with_level(population: Population, grid: Grid) -> tuple[Array, Array]:
    """Return mean and covariance of the parameters, with a level from the times of the grid.

    The time of an epoch depends on the dataset. With power modes, power is relative to the highest of the runs.
    """
    mean, covariance = population.mean.copy(), population.covariance.copy()
    mean[0], covariance[0], covariance[:, 0] = 0.0, 0.0, 0.0
    shifts = np.mean(grid.logs - mean_logs(mean, grid), axis=1)
    mean[0], covariance[0, 0] = shifts[0], PARAMETERS["level"][1] ** 2
    if grid.board and len(shifts) > 1:
        scale = [[*PARAMETERS].index(name) for name in OF_SCALE]
        mean[scale] += shifts[1]
        covariance[np.ix_(scale, scale)] += SCALE**2
    return mean, covariance


def _deviations(population: Population, grid: Grid) -> tuple[Array, Array]:
    """Return mean and covariance of the deviations with noise, given those of the same workload in other sweeps."""
    shape, covariance = (len(grid.logs), grid.others.shape[1]), _kernel(grid, grid) + _noise(grid)
    pairs = zip(population.grids, population.parameters, strict=True)
    same = [(other, best) for other, best in pairs if other.workload == grid.workload and shape == (len(other.logs), 0)]
    if not same:
        return np.zeros(grid.logs.size), covariance
    grids = [other for other, _ in same[-MAX_SAME:]]
    residuals = np.concatenate([(other.logs - mean_logs(best, other)).ravel() for other, best in same[-MAX_SAME:]])
    rows = [[_kernel(one, other) * (1.0 if one is other else SAME_WORKLOAD) for other in grids] for one in grids]
    noise = np.concatenate([np.diag(_noise(other)) for other in grids])
    cross = SAME_WORKLOAD * np.hstack([_kernel(grid, other) for other in grids])
    gain = np.linalg.solve(np.block(rows) + np.diag(noise), cross.T).T
    return gain @ residuals, covariance - gain @ cross.T


def _kernel(one: Grid, other: Grid) -> Array:
    """Return the covariance of the deviations of two grids, without noise."""
    from scipy.linalg import block_diag

    pairs = zip(_coordinates(one), _coordinates(other), strict=True)
    batch, limit, more = (_matern(first, second) for first, second in pairs)
    has_more = one.others.shape[1] > 0
    limit = limit * (ON_CLOCKS if one.board else 1.0) * (ON_CLOCKS if other.board else 1.0)
    covariance: Array = block_diag(*(
        more * (by_batch**2 * batch + by_limit**2 * limit + by_both**2 * batch * limit + has_more * by_more**2)
        for by_batch, by_limit, by_both, by_more, _ in DEVIATIONS[: len(one.logs)]
    ))  # fmt: skip
    return covariance


def _coordinates(grid: Grid) -> list[Array]:
    limits = np.log(np.minimum(grid.limits, 1.0))
    settings = np.column_stack([limits, grid.clocks * (LENGTHS[1] / CLOCK_LENGTH)])
    columns = np.log(grid.batches)[:, None], settings, grid.others
    return [column / length for column, length in zip(columns, LENGTHS, strict=True)]


def _matern(first: Array, second: Array) -> Array:
    distance = np.sqrt(5 * ((first[:, None] - second[None]) ** 2).sum(-1))
    covariance: Array = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return covariance


def _noise(grid: Grid) -> Array:
    return np.diag(np.repeat([deviations[-1] ** 2 for deviations in DEVIATIONS[: len(grid.logs)]], len(grid)))


def _most_probable(population: Population, grid: Grid) -> tuple[Array, Array]:
    """Return the parameters with the largest posterior density, and their covariance."""
    from scipy.optimize import least_squares

    (mean, covariance), (expected, deviations) = _with_level(population, grid), _deviations(population, grid)
    whiten, root = np.linalg.inv(np.linalg.cholesky(deviations)), np.linalg.cholesky(covariance)

    def errors(standard: Array) -> Array:
        misfit = grid.logs.ravel() - mean_logs(mean + root @ standard, grid).ravel() - expected
        return np.concatenate([whiten @ misfit, standard])

    def derivatives(standard: Array) -> Array:
        return np.vstack([-whiten @ _jacobian(mean + root @ standard, grid) @ root, np.eye(len(mean))])

    result = least_squares(errors, np.zeros(len(mean)), derivatives, max_nfev=60)
    return mean + root @ result.x, root @ np.linalg.inv(result.jac.T @ result.jac) @ root.T


def _jacobian(parameters: Array, grid: Grid) -> Array:
    """Return the derivatives of all logarithms, one column per parameter."""
    shifted = mean_logs((parameters + STEP * np.eye(len(parameters))).T[:, :, None], grid)
    differences: Array = (shifted - mean_logs(parameters, grid)[:, None]).transpose(0, 2, 1)
    return differences.reshape(-1, len(parameters)) / STEP


def _softplus(values: Array, scale: Any = 1.0) -> Array:
    """Return a smooth maximum of the values and zero."""
    maximum: Array = scale * np.logaddexp(0.0, values / scale)
    return maximum
