"""Numbers and intervals as text."""

import pytest

from epochmeter.report.statistics import Estimate
from epochmeter.report.words import interval, number


@pytest.mark.parametrize(
    ("value", "reference", "text"),
    [(12.0949, None, "12.1"), (0.012345, None, "0.0123"), (1234.5, None, "1234"), (0.4, 12.1, "0.4"),
     (-0.004, 12.1, "0.0"), (-0.4, 12.1, "-0.4"), (0.0, None, "0.00"), (None, None, "-"), (float("inf"), None, "-")],
)  # fmt: skip
def test_number_has_three_digits_or_those_of_its_reference(value, reference, text):
    assert number(value, reference) == text


def test_a_negative_estimate_is_shown():
    assert interval(Estimate(-0.2, -0.5, 0.1), 7.0) == "-0.20 s (-0.50 to 0.10)"


def test_an_interval_of_many_times_the_value_is_not_printed():
    assert interval(Estimate(6.3, 3e-5, 1.5e6), 6.3) == "6.30 s (too few repeats for an interval)"
    assert interval(Estimate(6.3, 1.0, 60.0), 6.3) == "6.30 s (1.00 to 60.00)"
