"""Ratios between configurations of a sweep: without the effects of rounds, and with shared variances."""

import pytest
from sweeps import costing

from epochmeter.report.analyses.ratios import Ratios
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.statistics import Estimate


def ratio(*samples, **keys):
    """Return the ratio of the second configuration to the first."""
    one, other, *more = group_repeats([
        costing(10 * place + repeat, time_s, batch=8 << place, repeat=repeat, **keys)
        for place, times in enumerate(samples) for repeat, time_s in enumerate(times)
    ])  # fmt: skip
    return Ratios({each: each.values("steady/e2e_s") for each in (one, other, *more)}).between(other, one)


def test_effects_of_rounds_cancel():
    slow, noise = [10.0, 12.0, 15.0], (1.001, 0.999, 1.0)
    samples = slow, [1.3 * value * factor for value, factor in zip(slow, noise, strict=True)]
    free, blocked = ratio(*samples), ratio(*samples, sweep={"order": "random", "repeats": 3})
    assert (free.value, blocked.value) == pytest.approx((1.3, 1.3), rel=1e-3)
    assert free.contains(1.0)
    assert 1.29 < blocked.low < blocked.high < 1.31


def test_single_run_has_no_interval_and_an_unknown_value_no_ratio():
    for one, other in (([10.0], [20.0]), ([10.0, 10.1], [20.1])):
        assert ratio(one, other, [5.0, 5.1]) == Estimate(pytest.approx(2.0, rel=1e-3))
    assert ratio([10.0, 0.0], [10.0, 11.0]) is ratio([10.0, 10.1], [10.0, None]) is None
