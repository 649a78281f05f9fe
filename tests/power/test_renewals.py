"""Renewals of a sensor's reading, found from jittered samples of a simulated sensor."""

import numpy as np
import pytest

from epochmeter.power.renewals import find_renewals, one_per_renewal


def held(true_s, *, seconds=30.0, period_s=0.05, wander=0.0, noise_w=1.0, seed=1):
    """Times of jittered samples, the readings in them, and when these were renewed.

    The true period changes by the fraction `wander` up and down.
    """
    rng = np.random.default_rng(seed)
    times_s = 100.0 + np.cumsum(period_s * rng.uniform(0.5, 1.5, round(seconds / period_s)))
    turns = np.arange(round(seconds / true_s) + 2)
    renewed_s = 99.95 + np.cumsum(true_s * (1 + wander * np.sin(turns / 80)))
    reading = np.searchsorted(renewed_s, times_s)
    return times_s, rng.normal(100, noise_w, len(renewed_s) + 1)[reading], renewed_s


def distance_s(found_s, renewed_s):
    """How far each found renewal is from the nearest true one."""
    return abs(found_s[:, None] - renewed_s).min(axis=1)


@pytest.mark.parametrize("true_s", [0.098, 0.1, 0.1011])
def test_renewals_are_found_with_an_inexact_stated_period_and_a_drifting_true_one(true_s):
    times_s, watts, renewed_s = held(true_s, seconds=200.0, wander=5e-4)
    found_s = find_renewals(times_s, watts, 0.1)
    assert len(found_s) == pytest.approx(200 / true_s, abs=8)
    assert np.percentile(distance_s(found_s, renewed_s), 95) < 0.006


def test_unknown_period_is_searched_down_to_half_of_an_estimate():
    times_s, watts, renewed_s = held(0.1)
    found_s = find_renewals(times_s, watts, 0.17, is_estimated=True)
    assert np.percentile(distance_s(found_s, renewed_s), 95) < 0.006
    assert find_renewals(times_s, watts, 0.17) is None


def test_renewals_are_unknown_if_each_sample_is_renewed_or_few_readings_differ():
    times_s, watts, _ = held(0.1)
    assert find_renewals(times_s, np.random.default_rng(1).normal(100, 1, len(times_s)), 0.1) is None
    assert find_renewals(times_s, np.where(times_s < 110, 5.0, 6.0), 0.1) is None
    assert find_renewals(times_s, np.full(len(times_s), 5.0), 0.1) is None
    regular_s = 100 + 0.1 * np.arange(100)
    assert find_renewals(regular_s, watts[:100], 0.1) is None, "the period is that of the samples"


def test_one_sample_per_reading_is_kept_unless_it_may_be_of_another():
    renewed_s = np.array([1.0, 2.0, 3.0, 4.0])
    samples, times_s = one_per_renewal(np.array([0.5, 1.1, 1.6, 1.9, 2.02, 3.4, 4.5]), renewed_s)
    assert samples.tolist() == [2, 5]
    assert times_s.tolist() == [1.0, 3.0]
