"""Choose the next runs: those that reduce the uncertainty of the Pareto front of time and energy."""

import numpy as np

from epochmeter.report.analyses.gaussian import Array, Posterior
from epochmeter.results.pareto import is_pareto_front

SAMPLES = 256
ELSEWHERE = 1.0
"""Weight of the mean uncertainty of all configurations, relative to those that may be on the front."""
MIN_VARIANCE = 1e-9


def choose_runs(posterior: Posterior, measured: Array, count: int) -> list[int]:
    """Return indices of predicted configurations: each reduces the variance near the front most, after those before it.

    The variances of the logarithms of time and energy are summed over all configurations. Their weights are the
    probabilities to be on the front (A-optimal design; K. Chaloner, I. Verdinelli, Bayesian Experimental Design, 1995).

    Args:
        measured: Logarithms of time and, if there is any, power of the runs, as those of the posterior.
    """
    quantities, size = posterior.means.shape
    values, vectors = np.linalg.eigh(posterior.covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = np.random.default_rng(0).standard_normal((SAMPLES, posterior.means.size)) @ root.T
    samples = posterior.means + draws.reshape(SAMPLES, quantities, size)
    every = np.concatenate([samples, np.broadcast_to(measured, (SAMPLES, *measured.shape))], axis=2)
    fronts = [is_pareto_front(zip(draw[0].tolist(), draw.sum(axis=0).tolist(), strict=True)) for draw in every]
    probabilities = np.mean(fronts, axis=0)[:size]
    weights = probabilities + ELSEWHERE * probabilities.mean()
    covariance = posterior.covariance.reshape(quantities, size, quantities, size)
    chosen: list[int] = []
    while len(chosen) < min(count, size):
        candidate_covariances = np.einsum("ajbj->jab", covariance) + MIN_VARIANCE * np.eye(quantities)
        gains = np.einsum("aibj,jbc->aijc", covariance, np.linalg.inv(candidate_covariances))
        decreases = np.einsum("aijc,bicj->abij", gains, covariance)  # of the covariance at i, by a run of j
        scores = weights @ (decreases[0, 0] + decreases.sum(axis=(0, 1)))
        scores[chosen] = -1.0
        chosen.append(best := int(np.argmax(scores)))
        covariance = covariance - np.einsum("aic,bjc->aibj", gains[:, :, best], covariance[:, :, :, best])
    return chosen
