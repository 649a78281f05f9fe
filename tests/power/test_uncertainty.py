"""Stated uncertainties cover at least 95 % of windows, whatever the sensor and the load: on a simulated clock."""

import numpy as np
import pytest
from power.simulated_sensors import CASES, PERIOD_S, WAVES, Case, simulate

from epochmeter.power.uncertainty import Response, border_j, student_95

WINDOWS = {1.0: 80, 10.0: 16}
LEAST = {1.0: 71, 10.0: 13}
"""How many of them must be covered: were 95 % covered in the long run, fewer would be in 1 of 100 tests.

`make bench` has hundreds of windows of each case, of which 95 % are.
"""
ALL = CASES | {f"{name}, {period_s * 1e3:g} ms": Case(wave, period_s=period_s)
               for name, wave in WAVES.items() for period_s in (PERIOD_S, 0.05, 0.1)}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_stated_uncertainty_covers_95_percent_of_windows(name):
    for window_s, windows in WINDOWS.items():
        found = simulate(name, ALL[name], window_s=window_s, runs=windows)
        assert round(found.covered * windows) >= LEAST[window_s], f"windows of {window_s:g} s"
        assert abs(found.bias) < 0.05


def test_stated_uncertainty_of_a_run_with_a_part_time_counter_covers_95_percent_of_runs():
    for name in ("stall and compute", "any square wave", "step near a border"):
        name = f"A100, counter: {name}"
        total = simulate(name, CASES[name], window_s=1.5, windows=8, runs=40)
        assert round(total.covered * 40) >= 35, name
        assert total.stated < 0.16, name


def test_student_quantile_matches_tables_for_few_degrees_of_freedom():
    table = {1: 12.706, 1.2: 8.649, 1.5: 6.017, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 100: 1.984}
    for freedom, quantile in table.items():
        assert quantile - 0.001 <= student_95(freedom) <= 1.022 * quantile


def test_step_at_a_border_is_bounded_by_a_quarter_of_the_averaging_time():
    """Error of a mean that is renewed once per averaging time; if that time is unknown, the delay has an error too."""
    times_s = np.arange(-1.0, 1.0, 0.01)
    watts = np.where(times_s < 0.1, 0.0, 10.0)
    known_j = border_j(times_s, watts, 0.0, Response(0.1, 0.0, 0.1))
    assert 10 * 0.1 / 4 <= known_j < 0.5
    unknown_j = border_j(times_s, watts, 0.0, Response(None, 0.0, 0.1))
    assert unknown_j == pytest.approx(known_j + 10 * 0.1 / 4)
