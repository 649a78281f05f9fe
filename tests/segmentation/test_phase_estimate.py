"""Estimates of the phases of all steps from those of the timed ones, and how often their intervals are right."""

import numpy as np
import pytest

from epochmeter.segmentation.phase_estimate import estimate, strata

STEPS, TRIALS = 240, 300
KINDS = np.arange(STEPS) % 4 == 3


def steps(generator):
    """Return the times of two phases of each step, with an optimizer step in every fourth, in columns, and compute."""
    noise = generator.lognormal(0, 0.1, (STEPS, 2))
    times = np.stack([3.0 * noise[:, 0], 5.0 * KINDS * noise[:, 1]], axis=1)
    return times, times.sum(axis=1) + generator.lognormal(0, 0.3, STEPS)


@pytest.mark.parametrize("count", [24, 40, 120])
def test_intervals_contain_the_true_totals_in_about_95_percent_of_random_samples(count):
    generator = np.random.default_rng(0)
    times, computes = steps(generator)
    right, errors = np.zeros(2), []
    for _ in range(TRIALS):
        timed = np.zeros(STEPS, dtype=bool)
        timed[generator.choice(STEPS, count, replace=False)] = True
        if (found := estimate(times[timed], computes, KINDS, timed)) is None:
            continue  # too few steps of a kind
        error = found.totals - times.sum(axis=0)
        right += abs(error) <= found.half_widths
        errors.append(error / times.sum(axis=0))
    assert len(errors) > 0.95 * TRIALS
    assert (right / len(errors) > 0.9).all()
    assert abs(np.mean(errors, axis=0)).max() < 0.01, "without bias"
    assert np.std(errors, axis=0).max() < 1.0 / np.sqrt(count)


def test_all_timed_steps_give_the_sums():
    times, computes = steps(np.random.default_rng(1))
    found = estimate(times, computes, KINDS, np.ones(STEPS, dtype=bool))
    assert found.totals == pytest.approx(times.sum(axis=0), rel=1e-12)
    assert not found.half_widths.any()


def test_few_steps_of_an_untimed_kind_get_the_fractions_of_the_others_and_widen_the_interval_by_their_compute():
    kinds, computes = np.array([2, *[0] * 40, 1]), np.array([1.0, *[10.0] * 40, 20.0])
    timed = np.arange(42) % 4 == 2
    found = estimate(np.full((timed.sum(), 2), [6.0, 3.0]), computes, kinds, timed)
    assert found.totals == pytest.approx(np.array([0.6, 0.3]) * computes.sum())
    assert found.half_widths == pytest.approx(np.array([21.0, 21.0]))


def test_kinds_with_too_few_timed_steps_are_one_stratum_and_a_lone_one_gives_no_estimate():
    kinds, timed = np.array([0, 0, 0, 1, 1, 2, 2, 3]), np.array([1, 1, 0, 1, 0, 1, 0, 1], dtype=bool)
    assert [of.nonzero()[0].tolist() for of in strata(kinds, timed)] == [[0, 1, 2], [7], [3, 4, 5, 6]]
    assert estimate(np.ones((1, 1)), np.ones(3), np.array([0, 1, 1]), np.array([False, True, False])) is None
