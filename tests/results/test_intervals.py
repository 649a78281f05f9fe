"""Student's intervals of means, and the intervals of medians: textbook values."""

from math import comb

import pytest

from epochmeter.results.intervals import MIN_OF_MEDIAN, half_width, median_interval, student


def test_quantiles_are_those_of_the_tables():
    assert [student(dof) for dof in (1, 2, 10)] == pytest.approx([12.706, 4.303, 2.228], abs=1e-3)


def test_interval_of_a_mean_is_wide_for_two_values_and_zero_for_equal_ones():
    assert half_width([10.0, 12.0]) == pytest.approx(12.706, abs=1e-3)
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(2.484, abs=1e-3)
    assert half_width([5.0] * 3) == 0


@pytest.mark.parametrize(("count", "ranks"), [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (12, (3, 10)), (26, (8, 19))])
def test_interval_of_a_median_has_the_ranks_of_the_tables(count, ranks):
    """E. L. Lehmann, Nonparametrics, 1975: the interval of the sign test."""
    assert median_interval([*range(count, 0, -1)]) == ranks


@pytest.mark.parametrize("count", [*range(MIN_OF_MEDIAN, 40), 84, 500])
def test_interval_of_a_median_covers_it_in_95_of_100_cases(count):
    low, high = median_interval([*range(count)])
    assert sum(comb(count, below) for below in range(low + 1, high + 1)) / 2**count >= 0.95


@pytest.mark.parametrize("count", range(MIN_OF_MEDIAN))
def test_few_values_have_no_interval_of_their_median(count):
    with pytest.raises(ValueError, match=f"{count} values have no 95 % interval"):
        median_interval([1.0] * count)
