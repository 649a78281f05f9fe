"""Choose the next runs: those that reduce the uncertainty of the Pareto front of time and energy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from epochmeter.report.analyses.gaussian import Array, Posterior

SAMPLES = 256
ELSEWHERE = 1.0
"""Weight of the mean uncertainty of all configurations, relative to those that may be on the front."""
MIN_VARIANCE = 1e-9


def choose_runs(posterior: Posterior, measured: Array, count: int) -> list[int]:
    """Return indices of predicted configurations: each reduces the variance near the front most, after those before it.

    The variance is that of the logarithms of time and energy, summed over all configurations and weighted by their
    probability to be on the front (A-optimal design; K. Chaloner, I. Verdinelli, Bayesian Experimental Design, 1995).

    Args:
        measured: Logarithms of time and, if there is any, power of the runs, as those of the posterior.
    """
    quantities, size = posterior.means.shape
    values, vectors = np.linalg.eigh(posterior.covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = np.random.default_rng(0).standard_normal((SAMPLES, posterior.means.size)) @ root.T
    samples = posterior.means + draws.reshape(SAMPLES, quantities, size)
    every = np.concatenate([samples, np.broadcast_to(measured, (SAMPLES, *measured.shape))], axis=2)
    probabilities = np.mean(is_front(every[:, 0], every.sum(axis=1))[:, :size], axis=0)
    weights = probabilities + ELSEWHERE * probabilities.mean()
    covariance = posterior.covariance.reshape(quantities, size, quantities, size)
    chosen: list[int] = []
    while len(chosen) < min(count, size):
        own = np.einsum("ajbj->jab", covariance) + MIN_VARIANCE * np.eye(quantities)
        gains = np.einsum("aibj,jbc->aijc", covariance, np.linalg.inv(own))
        decreases = np.einsum("aijc,bicj->abij", gains, covariance)  # of the covariance at i, by a run of j
        scores = weights @ (decreases[0, 0] + decreases.sum(axis=(0, 1)))
        scores[chosen] = -1.0
        chosen.append(best := int(np.argmax(scores)))
        covariance = covariance - np.einsum("aic,bjc->aibj", gains[:, :, best], covariance[:, :, :, best])
    return chosen


def is_front(times: Array, energies: Array) -> NDArray[np.bool_]:
    """Return which configurations of each row no other one beats in time and energy."""
    order = np.lexsort((energies, times), axis=1)
    in_order = np.take_along_axis(energies, order, 1)
    least = np.minimum.accumulate(in_order, axis=1)
    first = np.ones_like(order, dtype=bool)
    first[:, 1:] = in_order[:, 1:] < least[:, :-1]
    result = np.empty_like(first)
    np.put_along_axis(result, order, first, 1)
    return result
