"""Student's intervals of means: textbook values."""

import pytest

from epochmeter.results.intervals import half_width, student


def test_quantiles_are_those_of_the_tables():
    assert [student(dof) for dof in (1, 2, 10)] == pytest.approx([12.706, 4.303, 2.228], abs=1e-3)


def test_interval_of_a_mean_is_wide_for_two_values_and_zero_for_equal_ones():
    assert half_width([10.0, 12.0]) == pytest.approx(12.706, abs=1e-3)
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=1e-3)
    assert half_width([5.0] * 3) == 0
