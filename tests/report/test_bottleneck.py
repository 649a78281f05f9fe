"""What bounds a job, by its times under the three supplies: known answers, by hand and simulated."""

import random

import pytest
from scipy.stats import ttest_ind

from trainmeter.report.bottleneck import (
    COMPUTE,
    FETCH,
    PREPROCESSING,
    STORAGE,
    UNDECIDED,
    repeats_needed,
    verdict,
    verdict_in_memory,
)
from trainmeter.report.estimates import contrast

T1, T3, T2 = [5.5, 5.6, 5.7], [6.7, 6.8, 6.9], [12.0, 12.1, 12.2]


def samples(t1, t3, t2):
    return {"tensors": t1, "warm": t3, "cold": t2}


def spread(mean, by=0.01):
    return [mean - by, mean, mean + by]


@pytest.mark.parametrize("warm", [[6.7, 6.8, 6.9], [6.0, 9.0], [3.0, 3.1, 3.5, 3.2]])
def test_the_interval_is_welchs(warm):
    found = contrast(FETCH, samples(T1, warm, T2))
    known = ttest_ind(T2, warm, equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((known.low, known.high))


def test_two_runs_of_each_worked_by_hand():
    # Variances 0.02 and 0.02: standard error sqrt(0.02), 2 degrees of freedom, t = 4.303.
    found = contrast(FETCH, samples([0, 0], [1.9, 2.1], [4.9, 5.1]))
    assert found.value == pytest.approx(3.0)
    assert found.high - found.value == pytest.approx(4.3027 * 0.02**0.5, rel=1e-4)


def test_runs_that_are_all_alike_leave_an_interval_of_no_width():
    found = contrast(FETCH, samples([1, 1], [2, 2], [5, 5]))
    assert (found.low, found.value, found.high) == (3, 3, 3)


def test_the_interval_covers_the_truth_in_95_of_100():
    drawn, covered, spread_of = random.Random(4), 0, {"tensors": 0.05, "warm": 0.2, "cold": 0.4}
    means = {"tensors": 5.0, "warm": 6.0, "cold": 9.0}
    for _ in range(1000):
        found = {name: [drawn.gauss(means[name], spread_of[name]) for _ in range(4)] for name in means}
        told = contrast(FETCH, found)
        covered += told.low <= 3.0 <= told.high
    assert 930 <= covered <= 970


@pytest.mark.parametrize(
    ("times", "bound"),
    [
        ((5.0, 6.0, 12.0), STORAGE),
        ((5.0, 11.5, 12.0), PREPROCESSING),  # both matter; there is more to gain by the larger
        ((5.0, 12.0, 12.0), PREPROCESSING),
        ((12.0, 12.0, 12.0), COMPUTE),
        ((5.0, 5.0, 12.0), STORAGE),
        ((12.0, 12.05, 12.1), COMPUTE),  # each is less than 2 % of 12.1 s
    ],
)
def test_a_verdict_follows_the_stall_that_matters(times, bound):
    found = verdict(samples(*(spread(value) for value in times)))
    assert (found.bound, found.why) == (bound, None)


def test_an_interval_that_spans_what_matters_decides_nothing_and_says_what_would():
    noisy = samples(spread(11.4), spread(11.5, 0.3), spread(12.0, 0.3))  # fetch 0.5 +- 0.7, 0.24 matters
    found = verdict(noisy)
    assert (found.bound, found.repeats) == (UNDECIDED, 12)
    assert "fetch stall" in found.why
    assert verdict_in_memory(noisy).bound == UNDECIDED


def test_what_is_surely_the_larger_decides_whatever_is_not_known_of_the_other():
    noisy = samples(spread(5.0), spread(11.5, 0.3), spread(12.0, 0.3))
    assert verdict(noisy).bound == PREPROCESSING
    assert verdict(samples(spread(5.0), spread(5.1, 0.1), spread(12.0))).bound == STORAGE


def test_the_repeats_that_would_do_are_the_first_whose_interval_is_narrow_enough():
    # Variances 0.09 each: of n, half = t(2n - 2) sqrt(0.18 / n). To tell 0.5 from 0.24 (0.26): n = 22 (t = 2.018:
    # 0.183) and long before: n = 11 has 0.267, n = 12 0.254.
    assert repeats_needed(FETCH, 0.24, samples([5, 5], spread(11.5, 0.3), spread(12.0, 0.3))) == 12


def test_no_number_of_repeats_tells_what_is_just_at_the_bound():
    assert repeats_needed(FETCH, 0.5, samples([5, 5], spread(11.5, 0.3), spread(12.0, 0.3))) is None


def test_a_tie_of_storage_and_preprocessing_is_undecided():
    found = verdict(samples(spread(4.0), spread(8.0), spread(12.0)))
    assert found.bound == UNDECIDED
    assert "alike" in found.why


def test_a_tie_without_noise_or_repeats_is_undecided_too():
    assert verdict(samples([4.0], [8.0], [12.0])).bound == UNDECIDED
    assert verdict(samples([4.0, 4.0], [8.0, 8.0], [12.0, 12.0])).bound == UNDECIDED


def test_simulated_sweeps_give_the_right_verdict_or_none():
    """Truth: 5 s on tensors, 6 s warm, 9 s cold; noise of 1 % of a run."""
    drawn, seen = random.Random(1), []
    for _ in range(200):
        found = samples(*([drawn.gauss(mean, 0.01 * mean) for _ in range(3)] for mean in (5.0, 6.0, 9.0)))
        seen.append(verdict(found).bound)
    assert set(seen) <= {STORAGE, UNDECIDED}
    assert seen.count(STORAGE) > 190


@pytest.mark.parametrize(
    "times",
    [
        {"tensors": [2.46], "warm": [0.28], "cold": [0.52]},
        {"tensors": [2.4, 2.5, 2.45], "warm": [0.28, 0.29, 0.28], "cold": [0.52, 0.53, 0.52]},
    ],
    ids=["one of each", "three of each"],
)
def test_a_stall_far_below_zero_decides_nothing(times):
    for found in (verdict(times), verdict_in_memory(times)):
        assert found.bound == UNDECIDED
        assert "disturbed" in found.why


def test_a_stall_that_is_below_zero_by_noise_alone_decides_as_if_it_were_zero():
    times = {"tensors": [1.00, 1.01, 0.99], "warm": [0.997, 1.003, 0.993], "cold": [2.0, 2.01, 1.99]}
    assert verdict(times).bound == STORAGE
