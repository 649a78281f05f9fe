"""Estimates: values and intervals worked out by hand, or by another way."""

import math
import random
import statistics

import pytest
from scipy.stats import ttest_1samp, ttest_ind

from epochmeter.report.statistics import (
    Estimate,
    difference,
    false_discovery_rates,
    mean,
    p_value,
    positive_mean,
    range_of,
    ratio,
    spreads,
)
from epochmeter.report.words import spread


def test_a_ratio_is_that_of_the_values_and_its_interval_that_of_their_logarithms():
    found = ratio([190.0, 192.0, 188.0], [100.0, 101.0, 99.0])
    logs = [[math.log(value) for value in values] for values in ([190, 192, 188], [100, 101, 99])]
    known = ttest_ind(*logs, equal_var=False).confidence_interval()
    assert found.value == pytest.approx(1.9, rel=1e-4)
    assert (found.low, found.high) == pytest.approx((math.exp(known.low), math.exp(known.high)))


def test_a_ratio_turned_round_is_its_inverse():
    there, back = ratio([3.0, 3.3], [2.0, 2.1]), ratio([2.0, 2.1], [3.0, 3.3])
    assert (1 / back.value, 1 / back.high, 1 / back.low) == pytest.approx((there.value, there.low, there.high))


@pytest.mark.parametrize("values", [([3.0], [2.0]), ([3.0, 3.0], [2.0]), ([3.0], [2.0, 2.0])])
def test_what_ran_once_has_no_interval(values):
    assert ratio(*values) == Estimate(pytest.approx(1.5))
    assert difference(*values) == Estimate(1.0)


def test_a_mean_has_students_interval():
    known = ttest_1samp([5.0, 5.5, 6.3], 0).confidence_interval()
    found = mean([5.0, 5.5, 6.3])
    assert (found.low, found.high) == pytest.approx((known.low, known.high))


@pytest.mark.parametrize("values", [[0.714, 0.884], [5.0, 5.5, 6.3], [0.1, 9.0], [100.0, 101.0, 99.5, 100.2]])
def test_the_interval_of_what_lies_above_zero_is_that_of_its_logarithms_and_holds_the_mean(values):
    known = ttest_1samp([math.log(value) for value in values], 0).confidence_interval()
    found = positive_mean(values)
    assert (found.low, found.high) == pytest.approx((math.exp(known.low), math.exp(known.high)))
    assert found.value == pytest.approx(sum(values) / len(values))
    assert 0 < found.low < found.value < found.high


def test_two_runs_whose_mean_has_an_interval_below_zero_have_one_above_it_where_there_is_nothing_below():
    assert mean([0.714, 0.884]).low < 0
    assert spread(positive_mean([0.714, 0.884])) == "0.799 (0.205 to 3.086)"


def test_where_a_value_is_none_above_zero_the_interval_is_students():
    assert positive_mean([0.0, 1.0]) == mean([0.0, 1.0])
    assert positive_mean([2.0]) == Estimate(2.0)


def test_another_unit_changes_all_of_an_estimate():
    assert Estimate(2.0, 1.0, 3.0).scaled(0.5) == Estimate(1.0, 0.5, 1.5)
    assert Estimate(2.0).scaled(0.5) == Estimate(1.0)


def test_a_p_value_is_welchs():
    known = ttest_ind([10.0, 10.5, 11.3], [9.0, 9.1, 10.4, 9.9], equal_var=False)
    assert p_value([10.0, 10.5, 11.3], [9.0, 9.1, 10.4, 9.9]) == pytest.approx(known.pvalue)
    assert (p_value([1.0, 1.0], [1.0, 1.0]), p_value([1.0, 1.0], [2.0, 2.0]), p_value([1.0], [2.0])) == (1, 0, None)


@pytest.mark.parametrize(
    ("count", "freedom", "known"), [(2, 10, 3.151), (3, 10, 3.877), (10, 20, 5.008), (20, 5, 8.208)]
)
def test_a_range_is_that_of_the_tables(count, freedom, known):
    assert range_of(count, freedom) * math.sqrt(2) == pytest.approx(known, abs=1e-3)


def test_of_two_jobs_nothing_is_lent_and_one_value_has_no_spread():
    one, other = spreads([[1.0, 3.0], [5.0]])
    assert (one, other) == (pytest.approx((2.0, 1.0)), None)
    one, other = spreads([[1.0, 3.0], [5.0, 5.0]])
    assert (one, other) == (pytest.approx((2.0, 1.0)), (0.0, 1.0))


def test_jobs_that_vary_alike_have_one_spread_that_all_of_them_tell_of():
    found = spreads([[1.0, 3.0], [11.0, 13.0], [5.0, 7.0], [2.0]])
    assert found[:3] == [found[0]] * 3
    assert (found[0].freedom, found[3]) == (3.0, None)


def test_how_unlike_jobs_vary_is_found_again():
    """Variances drawn with 6 degrees of freedom around 4, each told by 4 values: 6 + 3 degrees, drawn toward 4."""
    chance = random.Random(0)
    samples = []
    for _ in range(4000):
        deviation = math.sqrt(4.0 * 6 / chance.gammavariate(3, 2))
        samples.append([chance.gauss(0, deviation) for _ in range(4)])
    found = spreads(samples)
    assert found[0].freedom == pytest.approx(9, rel=0.1)
    own = [statistics.variance(values) for values in samples]
    lent = [each.variance * 9 - 3 * variance for each, variance in zip(found, own, strict=True)]
    assert statistics.median(lent) / 6 == pytest.approx(4, rel=0.1)


def test_the_p_value_of_one_run_beside_repeats_is_that_of_one_more_of_them():
    # (12 - 10) / (1 x sqrt(1 + 1/3)) = 1.732 on 2 degrees of freedom: 1 - 1.732 / sqrt(2 + 3).
    assert p_value([9.0, 10.0, 11.0], [12.0]) == p_value([12.0], [9.0, 10.0, 11.0]) == pytest.approx(1 - 0.6**0.5)


def test_false_discovery_rates_are_those_of_benjamini_and_hochberg():
    """By hand: 0.01 x 4 / 1, 0.02 x 4 / 2, and 0.5, 0.04 x 4 / 3 below it, the least from the right."""
    assert false_discovery_rates([0.5, 0.01, 0.04, 0.02]) == pytest.approx([0.5, 0.04, 0.16 / 3, 0.04])
    assert (false_discovery_rates([]), false_discovery_rates([0.03])) == ([], [0.03])
