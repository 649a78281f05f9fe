"""Ratios between configurations of a sweep: without the effects of rounds, and with shared variances."""

import pytest
from sweeps import costing

from epochmeter.report.analyses.ratios import Ratios
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.statistics import Estimate

ROUNDS = (1.0, 1.2, 1.5)


def configurations(*samples, **keys):
    return group_repeats([costing(10 * place + repeat, time_s, batch=8 << place, repeat=repeat, **keys)
                          for place, times in enumerate(samples) for repeat, time_s in enumerate(times)])  # fmt: skip


def ratio(*samples, **keys):
    """Return the ratio of the second to the first."""
    one, other, *more = configurations(*samples, **keys)
    return Ratios({each: each.values("steady/e2e_s") for each in (one, other, *more)}).between(other, one)


def test_effects_of_rounds_cancel():
    slow, noise = [10.0 * factor for factor in ROUNDS], (1.001, 0.999, 1.0)
    samples = slow, [1.3 * value * factor for value, factor in zip(slow, noise, strict=True)]
    free, blocked = ratio(*samples), ratio(*samples, sweep={"order": "random", "repeats": 3})
    assert (free.value, blocked.value) == pytest.approx((1.3, 1.3), rel=1e-3)
    assert free.contains(1.0)
    assert 1.29 < blocked.low < blocked.high < 1.31


@pytest.mark.parametrize(("one", "other"), [([10.0], [20.0]), ([10.0, 10.1], [20.1])])
def test_single_run_has_no_interval(one, other):
    result = ratio(one, other, [5.0, 5.1])
    assert result == Estimate(pytest.approx(2.0, rel=1e-3))


def test_without_positive_values_there_is_no_ratio():
    assert ratio([10.0, 0.0], [10.0, 11.0]) is None
    assert ratio([10.0, 10.1], [10.0, None]) is None
    assert Ratios({}).between(*configurations([1.0], [2.0])) is None
