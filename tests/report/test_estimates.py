"""Estimates: values and intervals worked out by hand, or by another way."""

import math

import pytest
from scipy.stats import ttest_1samp, ttest_ind

from trainmeter.report.estimates import Estimate, difference, mean, ratio


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


def test_another_unit_changes_all_of_an_estimate():
    assert Estimate(2.0, 1.0, 3.0).scaled(0.5) == Estimate(1.0, 0.5, 1.5)
    assert Estimate(2.0).scaled(0.5) == Estimate(1.0)
