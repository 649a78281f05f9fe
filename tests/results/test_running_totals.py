"""Sums over epochs, and the sums of a series that its forecast needs."""

import random

import numpy as np
import pytest

from epochmeter.results.forecast import _squared_innovations
from epochmeter.results.running_totals import RunningTotals, series_of


def test_sums_follow_the_last_epoch_which_may_change():
    totals = RunningTotals()
    assert (totals.epochs, totals.sum("time")) == (0, 0.0)
    totals.begin()
    totals.last = {"time": 1.0}
    totals.last = {"time": 3.0, "energy": 5.0}
    assert (totals.epochs, totals.sum("time"), totals.sum("energy")) == (1, 3.0, 5.0)
    totals.begin()
    assert totals.sum("time") is None, "not known of the second epoch"
    totals.last = {"time": 4.0}
    assert (totals.sum("time"), totals.sum("energy"), totals.known("energy")) == (7.0, None, 1)


@pytest.mark.parametrize("outlier", [0.0, 50.0])
def test_squared_innovations_are_those_of_all_values(outlier):
    draw = random.Random(0)
    values = [100.0 + outlier, *(100 + draw.gauss(0, 1) for _ in range(499))]
    correlation, mean = np.array([0.0, 0.5, 0.99]), np.array([0.1, -0.2, 3.0])
    deviations = np.array(values)[:, None] - 100 - mean
    expected = ((deviations[1:] - correlation * deviations[:-1]) ** 2).sum(axis=0)
    expected += (1 - correlation**2) * deviations[0] ** 2
    series = series_of(values)
    assert (series.count, series.mean) == (500, pytest.approx(np.mean(values)))
    assert _squared_innovations(series, correlation, mean + 100 - values[0]) == pytest.approx(expected, rel=1e-9)


def test_equal_values_have_no_innovations():
    assert not _squared_innovations(series_of([7.3] * 1000), np.array([0.0, 0.9]), np.zeros(2)).any()
