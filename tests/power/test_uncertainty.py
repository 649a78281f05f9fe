"""Stated uncertainties cover at least 95 % of windows, whatever the sensor and the load: on a simulated clock."""

import numpy as np
import pytest
from power.simulated_sensors import CASES, FAR_S, IN_STEP_S, PERIOD_S, WAVES, Case, simulate, step_case

from epochmeter.power.uncertainty import UNKNOWN, Response, border_j, interior_j, student_95

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


STEP_WINDOWS = {1.0: 16, 3.0: 8, 10.0: 4}


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.3])
def test_part_time_sensor_covers_95_percent_of_windows_of_steps_in_step_with_it(jitter):
    cases = {f"{step_s} {jitter}": step_case(step_s, jitter, counter=step_s > 0.1) for step_s in IN_STEP_S}
    cases |= {f"unknown, {step_s}": step_case(step_s, jitter, stated=UNKNOWN) for step_s in IN_STEP_S[4::3]}
    for window_s, windows in STEP_WINDOWS.items():
        found = [simulate(name, case, window_s=window_s, runs=windows) for name, case in cases.items()]
        assert np.mean([one.covered for one in found]) >= 0.95, f"windows of {window_s:g} s"


def test_steps_out_of_step_with_a_part_time_sensor_have_almost_the_same_uncertainty():
    for window_s, windows in STEP_WINDOWS.items():
        cases = [step_case(step_s, 0.1) for step_s in FAR_S]
        known, unknown = (
            [simulate("far", case._replace(knows_steps=is_known), window_s=window_s, runs=windows) for case in cases]
            for is_known in (True, False)
        )
        assert np.mean([one.covered for one in known]) >= 0.95
        ratios = [one.stated / other.stated for one, other in zip(known, unknown, strict=True)]
        assert 1.0 <= np.median(ratios) < 1.15, f"windows of {window_s:g} s"


def test_uncertainty_in_step_with_a_part_time_counter_covers_95_percent_of_runs():
    """The windows of a run may have errors of the same sign."""
    for step_s in (0.5 * IN_STEP_S[4], IN_STEP_S[4], 2 * IN_STEP_S[4]):
        total = simulate("total", step_case(step_s, 0.0, counter=True), window_s=1.5, windows=8, runs=20)
        assert round(total.covered * 20) >= 18, step_s


def test_uncertainty_with_a_part_time_counter_covers_95_percent_of_runs():
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


def test_border_without_later_readings_may_have_any_power_up_to_twice_the_readings():
    times_s, response = np.arange(-1.0, 0.19, 0.01), Response(0.1, 0.02, 0.1)
    constant_w, rising_w = np.full(len(times_s), 10.0), np.where(times_s < 0.1, 2.0, 22.0)
    late_s = 0.02 + 0.1 + 0.1
    assert border_j(times_s, constant_w, 0.0, response) == pytest.approx(late_s * 10)
    assert border_j(times_s, rising_w, 0.0, response) == pytest.approx(late_s * 20), "or swing as much as the readings"
    assert border_j(times_s, constant_w, -0.5, response) == pytest.approx(0.2 * 0.1 * 10), "later readings cover it"


def test_power_in_a_hole_is_in_its_range_up_to_three_holes_away():
    """A hole of 1 s in samples of 10 W. Shortly before the window, power was 4 W, and long before 0 W."""
    times_s = np.concatenate([np.arange(-9.95, 1.0, 0.1), np.arange(2.0, 8.0, 0.1)])
    watts = np.select([times_s < -5, times_s < -1], [0.0, 4.0], 10.0)
    half_width_j, structure_j = interior_j(times_s, watts, 0.0, 5.0, Response())
    hole_s = 2.0 - times_s[times_s < 1.5][-1]
    assert (half_width_j, structure_j) == (pytest.approx(hole_s * (10 - 4)), 0.0)
