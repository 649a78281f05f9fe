"""Half-widths for power that repeats in each step, of a sensor that measures 25 of about 100 ms."""

from itertools import pairwise

import numpy as np
import pytest
from power.test_renewals import held

from epochmeter.power.step_sampling import in_step_j, places_in_steps, unevenness, unseen_s
from epochmeter.power.uncertainty import Response

A100, TRUE_S = Response(0.025, 0.0, 0.1), 0.1011
GOLDEN = 0.618  # a rotation by this fraction samples a circle evenly


def half_width_w(step_s, response=A100, *, limit_w=130.0, period_s=0.05, **how):
    """The half-width of mean power during 10 s of equal steps; readings are of 100 W with noise."""
    times_s, watts, _ = held(TRUE_S, seconds=20.0, noise_w=0.01, period_s=period_s, **how)
    borders_s = np.arange(108.0, 118.0, step_s)
    return in_step_j(times_s, watts, borders_s, response, limit_w=limit_w) / (borders_s[-1] - borders_s[0])


def test_steps_in_step_with_the_sensor_may_have_any_power_in_the_unseen_time():
    unseen = 1 - 0.025 / TRUE_S
    assert half_width_w(TRUE_S) == pytest.approx(unseen * 100, rel=0.06), "it may be 0 W"
    assert half_width_w(TRUE_S, limit_w=250.0) == pytest.approx(unseen * 150, rel=0.06), "it may be at its limit"
    assert half_width_w(2 * TRUE_S) == pytest.approx(unseen / 2 * 100, rel=0.06)
    assert half_width_w(TRUE_S / 5) <= (TRUE_S / 5) / (4 * 0.025) * 100, "shorter than the averaging time"


def test_steps_that_readings_sample_evenly_add_almost_no_uncertainty():
    for step_s in (GOLDEN * TRUE_S, TRUE_S / GOLDEN, (1 + GOLDEN) * 2 * TRUE_S):
        assert half_width_w(step_s) < 1.0


def test_range_of_the_readings_counts_as_far_as_they_sample_the_steps_unevenly():
    """Half of the readings are of 90 W, half of 110 W."""
    times_s, watts, renewed_s = held(TRUE_S, seconds=20.0, noise_w=0.01)
    watts = watts + np.where(np.searchsorted(renewed_s, times_s) % 2, 10.0, -10.0)
    borders_s = np.arange(108.0, 118.0, 4 * TRUE_S)
    joules = in_step_j(times_s, watts, borders_s, A100, limit_w=110.0)
    quarter_unseen = 0.25 * (1 - 0.025 / TRUE_S)  # four places per step
    assert joules / np.ptp(borders_s) == pytest.approx(0.25 * 20 + quarter_unseen * 90, rel=0.1)


def test_sensors_that_miss_nothing_add_no_uncertainty():
    assert half_width_w(TRUE_S, Response(0.1, 0.0, 0.1)) == 0.0
    assert half_width_w(TRUE_S, period_s=0.15) == 0.0
    times_s, watts, _ = held(TRUE_S)
    assert in_step_j(times_s, watts, np.array([50.0, 60.0]), A100) == 0.0, "no samples"
    assert in_step_j(times_s, watts, np.array([110.0, 110.05]), A100) == 0.0, "shorter than a renewal"


def test_renewal_is_assumed_to_be_in_step_if_constant_readings_do_not_show_it():
    times_s, _, _ = held(TRUE_S)
    constant_w = np.full(len(times_s), 100.0)
    for step_s, least_w, most_w in ((TRUE_S, 70.0, 80.0), (GOLDEN * TRUE_S, 0.0, 5.0)):
        borders_s = np.arange(108.0, 118.0, step_s)
        joules = in_step_j(times_s, constant_w, borders_s, A100)
        assert least_w < joules / np.ptp(borders_s) < most_w


def test_unevenness_is_kuipers_statistic_whatever_the_origin():
    for offset in (0.0, 0.1, 0.7):
        assert unevenness((np.arange(4) / 4 + offset) % 1) == pytest.approx((0.25, 0.25))
        assert unevenness((np.array([0.1, 0.1, 0.1]) + offset) % 1) == pytest.approx((1.0, 1.0))
        assert unevenness((np.array([0.0, 0.1, 0.2, 0.5]) + offset) % 1) == pytest.approx((0.55, 0.5))
    assert unevenness(np.array([])) == (1.0, 1.0)


def test_place_is_the_elapsed_fraction_of_the_step():
    places = places_in_steps(np.array([0.9, 1.0, 1.5, 2.5, 3.9, 4.0]), np.array([1.0, 2.0, 4.0]))
    assert places.tolist() == [0.0, 0.5, 0.25, 0.95]


def test_unseen_time_grows_without_jumps_to_the_gap_less_the_averaging_time():
    gaps_s = np.linspace(0.0, 0.2, 401)
    times_s = [unseen_s(gap_s, 0.025) for gap_s in gaps_s]
    assert (times_s[0], times_s[-1]) == (0.0, pytest.approx(0.175))
    assert all(0 <= later - earlier < 0.00051 for earlier, later in pairwise(times_s))
    assert unseen_s(0.1, 0.0) == 0.1
