import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from epochmeter.power.power_series import Sampling, Series
from epochmeter.power.uncertainty import Response
from epochmeter.power.uncertainty import renewal_s as estimated_s

S = 1_000_000_000
BRIDGE_S = 0.8


def series(*domains: str, total: tuple[str, ...] | None = None, **how) -> Series:
    names = domains or ("VDD_IN",)
    return Series(names, total=total or names, bridge_s=BRIDGE_S, **how)


def sampled(watts: Callable[[float], float], times_s, **how) -> Series:
    """The series of one rail, whose watts were read at those seconds."""
    made = series(**how)
    for at_s in times_s:
        made.add(round(at_s * S), {"VDD_IN": watts(at_s)})
    return made


def joules(made: Series, until_s: float) -> float:
    return made.joules(round(until_s * S))["VDD_IN"]


def uneven(seconds: float, period_s: float, seed: int) -> list[float]:
    """Moments from 0 to the end, as far apart as a sampler's are."""
    chance, times = random.Random(seed), [0.0]
    while times[-1] < seconds:
        times.append(times[-1] + chance.uniform(0.5, 1.5) * period_s)
    return [*times[:-1], seconds]


TIMES = uneven(1.0, 0.02, seed=1)


@pytest.mark.parametrize(
    ("watts", "energy_j"),
    [(lambda at_s: 10.0, 10.0), (lambda at_s: 5 + 10 * at_s, 10.0), (lambda at_s: 0.0, 0.0)],
    ids=["constant", "ramp", "off"],
)
def test_a_straight_line_has_its_joules_exactly_however_uneven_the_samples(watts, energy_j):
    made = sampled(watts, TIMES)
    sampling = made.sampling(0, S)
    assert joules(made, 1.0) == pytest.approx(energy_j)
    assert sampling.half_width_j == pytest.approx(0, abs=0.03)  # a ramp may be stairs: a step between two samples
    assert sampling.samples == len(TIMES)  # those at the borders among them


def test_a_step_is_wrong_by_half_of_the_interval_it_falls_into_and_the_uncertainty_holds_it():
    made = sampled(lambda at_s: 5.0 if at_s < 0.5 else 15.0, [0.0, 0.2, 0.49, 0.52, 0.9, 1.0])
    error_j = joules(made, 1.0) - 10.0
    assert error_j == pytest.approx(10 * (0.5 - (0.49 + 0.52) / 2))
    assert abs(error_j) < made.sampling(0, S).half_width_j


@pytest.mark.parametrize("period_s", [0.01, 0.02, 0.05])
def test_the_stated_uncertainty_of_a_square_wave_holds_the_error_of_19_windows_in_20(period_s):
    cycle_s, held, errors = 0.12, 0, []
    for seed in range(200):
        phase_s = random.Random(seed).uniform(0, cycle_s)
        made = sampled(lambda at_s: 15.0 if (at_s + phase_s) % cycle_s < 0.06 else 5.0, uneven(1.2, period_s, seed))  # noqa: B023
        errors.append(joules(made, 1.2) - 12.0)  # ten whole cycles
        held += abs(errors[-1]) <= made.sampling(0, round(1.2 * S)).half_width_j
    assert held >= 190
    assert abs(sum(errors)) / len(errors) < 0.01 * 12


def test_what_a_sensor_rounds_it_may_always_round_to_the_same_side():
    made = sampled(lambda at_s: 10.0, TIMES, steps_w={"VDD_IN": 0.04})
    assert made.sampling(0, S).half_width_j == pytest.approx(0.02)


def test_a_known_delay_is_corrected_and_smoothing_is_in_the_uncertainty():
    """A mean over 0.2 s of a step from 5 to 15 W, 0.05 s before the window's end, of which 0.5 J are seen after it."""
    response = Response(averaging_s=0.2)
    made, at_close_j = series(responses={"VDD_IN": response}), 0.0
    for at_s in (0.01 * hundredth for hundredth in range(-100, 131)):
        made.add(round((2 + at_s) * S), {"VDD_IN": 5 + 10 * min(1.0, max(0.0, (at_s - 0.95) / 0.2))})
        at_close_j = joules(made, 3.0) if round(at_s, 6) == 1.0 else at_close_j
    sampling = made.sampling(2 * S, 3 * S)
    read_j = at_close_j - 5.0  # of the second before the window
    true_j = 5.0 + 10 * 0.05
    assert read_j == pytest.approx(5.0 + 10 * 0.05**2 / 0.4, abs=0.001)
    assert true_j - read_j > 0.4
    assert abs(read_j + sampling.correction_j["VDD_IN"] - true_j) == pytest.approx(10 * 0.05**2 / 0.4, abs=0.01)
    assert 10 * 0.05**2 / 0.4 < sampling.half_width_j < 0.5
    assert made.settled_s == pytest.approx(0.2)


def test_what_another_process_has_not_sampled_yet_may_be_at_any_power_so_far():
    def stated(until_s):
        made = sampled(lambda at_s: 5.0 if at_s < 1.5 else 15.0, [0.1 * tenth for tenth in range(41)], pace_s=0.1)
        return made.sampling(3 * S, round(until_s * S)).half_width_j

    assert stated(4.0) < 0.5
    assert stated(4.4) >= 0.4 * 10


def test_a_drop_of_power_at_the_windows_end_is_wrong_by_half_of_its_interval_once():
    """The fresh sample is taken after the window, and joules are asked for after that."""
    made = series()
    for hundredth in range(100):
        made.add(round((1 + 0.01 * hundredth) * S), {"VDD_IN": 10.0})
    made.add(round(2.0005 * S), {"VDD_IN": 0.0})
    read_j = joules(made, 2.001)
    sampling = made.sampling(S, 2 * S)
    error_j = read_j + sampling.correction_j["VDD_IN"] - 10.0
    assert error_j == pytest.approx(-10 * 0.0105 / 2 + 10 * 0.0005, abs=0.001)
    assert abs(error_j) < sampling.half_width_j


def test_without_samples_after_the_window_unreported_power_is_in_the_uncertainty():
    made = sampled(lambda at_s: 10.0, TIMES, responses={"VDD_IN": Response(0.2, 0.0, 0.2)})
    assert made.sampling(0, S).half_width_j >= 0.4 * 10


def test_a_sensor_that_measures_a_part_of_the_time_has_the_whole_variance_of_its_readings():
    def stated(**response):
        made = sampled(
            lambda at_s: 15.0 if at_s % 4 < 2 else 5.0,
            [0.05 * sample for sample in range(240)],
            responses={"VDD_IN": Response(renewal_s=0.1, **response)},
        )
        return made.sampling(0, 10 * S).half_width_j

    assert stated(averaging_s=0.1) < 1.0
    assert stated(averaging_s=0.025) == pytest.approx(2 * 5 * math.sqrt(0.75 * 100) * 0.1, rel=0.15)
    assert stated(averaging_s=None) > stated(averaging_s=0.025)


def test_a_renewal_period_that_is_unknown_is_estimated_from_runs_of_identical_readings():
    chance = random.Random(1)
    for renewal_s, period_s in ((0.1, 0.03), (0.1, 0.05), (0.02, 0.005)):
        levels = [chance.random() for _ in range(2000)]
        times = np.array(uneven(10.0, period_s, seed=2))
        found = estimated_s(times, np.array([levels[int(at_s / renewal_s)] for at_s in times]))
        assert renewal_s <= found < renewal_s + 2 * period_s
    assert estimated_s(np.array([0.0, 0.1, 0.2]), np.array([1.0, 1.0, 2.0])) is None


def test_the_renewal_period_of_several_gpus_is_that_of_each_and_not_that_of_their_sum():
    chance, names = random.Random(1), [f"gpu{number}" for number in range(4)]
    levels = [[chance.random() for _ in range(150)] for _ in names]
    made = series(*names, responses=dict.fromkeys(names, Response(None, 0.0, None)))
    for at_s in uneven(10.0, 0.01, seed=3):
        made.add(round(at_s * S), {name: levels[of][int((at_s + 0.025 * of) / 0.1)] for of, name in enumerate(names)})
    made.sampling(0, 10 * S)
    assert 0.2 <= made.settled_s < 0.24  # a renewal, and as long again for the unknown averaging time


def test_a_hole_in_an_alternating_load_may_hold_its_highest_or_its_lowest_power():
    times = [0.01 * hundredth for hundredth in range(101) if not 40 < hundredth < 70]
    made = sampled(lambda at_s: 15.0 if at_s % 0.12 < 0.06 else 5.0, times)
    assert 0.3 * 5 <= made.sampling(0, S).half_width_j <= 0.3 * 10 + 0.5


def test_spikes_in_samples_before_the_window_are_in_its_uncertainty():
    spiky = [0.01 * hundredth for hundredth in range(-500, 101)]
    made, quiet = series(), sampled(lambda at_s: 5.0, [0.01 * hundredth for hundredth in range(101)])
    for place, at_s in enumerate(spiky):
        made.add(round((6 + at_s) * S), {"VDD_IN": 30.0 if at_s < 0 and place % 50 == 0 else 5.0})
    assert quiet.sampling(0, S).half_width_j == pytest.approx(0)
    assert made.sampling(6 * S, 7 * S).half_width_j > 25 * 0.01


def test_another_process_s_samples_that_end_before_the_window_miss_the_swing_since():
    ramp = sampled(lambda at_s: 10 * at_s, [0.1 * tenth for tenth in range(11)], pace_s=0.1)
    late, settled = ramp.sampling(0, round(1.1 * S)), ramp.sampling(0, S)
    assert late.half_width_j - settled.half_width_j > 0.0
    assert ramp.settled_s == 0.1


def test_joules_between_two_samples_go_on_with_the_last_power():
    assert joules(sampled(lambda at_s: 10.0, [0.0, 0.5]), 0.6) == pytest.approx(6.0)


def test_a_failed_read_is_bridged_by_a_straight_line_and_counted():
    made = series()
    made.add(0, {"VDD_IN": 10.0})
    for at_s in (0.1, 0.2, 0.3):
        made.add(round(at_s * S), {}, {"VDD_IN": "empty"})
        assert made.lost(round(at_s * S)) == {}
    made.add(round(0.4 * S), {"VDD_IN": 20.0})
    sampling = made.sampling(0, round(0.4 * S))
    assert joules(made, 0.4) == pytest.approx(6.0)
    assert (sampling.samples, sampling.failed, sampling.lost) == (2, 3, {})
    assert sampling.gap_max_s == pytest.approx(0.4)
    assert made.sampling(0, round(0.3 * S)).failed == 3


def test_a_domain_unread_for_longer_than_the_bridge_is_told_and_has_no_energy_in_that_stretch():
    made = series("VDD_IN", "VDD_SOC", total=("VDD_IN",))
    made.add(0, {"VDD_IN": 10.0, "VDD_SOC": 1.0})
    told = {}
    for tenth in range(1, 11):
        made.add(tenth * S // 10, {"VDD_SOC": 1.0}, {"VDD_IN": "No such device"})
        told[tenth] = made.lost(tenth * S // 10)
    assert {tenth for tenth, lost in told.items() if lost == {"VDD_IN": "No such device"}} == {9, 10}  # after 0.8 s
    assert made.joules(S) == {"VDD_SOC": pytest.approx(1.0)}
    assert made.sampling(0, S).lost == {"VDD_IN": "unread for 1.0 s: No such device"}


def test_a_domain_that_came_back_has_no_energy_where_it_was_gone_and_has_some_before_and_after():
    made = sampled(lambda at_s: 10.0, [0.0, 0.5, 1.0, 3.0, 3.5, 4.0])
    assert made.sampling(0, S).lost == {}
    assert made.sampling(3 * S, 4 * S).lost == {}
    for opened_s, closed_s in ((0, 4), (0, 2), (2, 4), (1.5, 2.5)):
        assert made.sampling(round(opened_s * S), round(closed_s * S)).lost == {
            "VDD_IN": "unread for 2.0 s: no sample was taken"
        }


def test_a_gap_that_reaches_past_what_is_handed_over_is_not_forgotten():
    made = sampled(lambda at_s: 10.0, [0.0, 0.5, 1.0, 3.0, 3.5])
    made.drain(2 * S)
    assert made.sampling(2 * S, round(3.5 * S)).lost == {"VDD_IN": "unread for 2.0 s: no sample was taken"}


def test_a_stretch_in_which_no_read_succeeds_has_no_energy_however_short_it_is():
    made = sampled(lambda at_s: 10.0, [0.0, 0.1])
    for at_s in (0.2, 0.3, 0.4):
        made.add(round(at_s * S), {}, {"VDD_IN": "No such device"})
    assert made.sampling(0, S // 5).lost == {}
    assert made.sampling(S // 5, round(0.4 * S)).lost == {"VDD_IN": "not once read in it: No such device"}


def test_a_stretch_between_two_samples_is_not_lost():
    """As where nothing fails, and what checks a counter is sampled more seldom than the stretch is long."""
    made = sampled(lambda at_s: 10.0, [0.0, 0.1])
    assert made.sampling(S // 5, round(0.4 * S)).lost == {}


def test_what_was_bridged_or_not_stays_so_when_the_bridge_is_made_longer():
    made = sampled(lambda at_s: 10.0, [0.0, 0.5, 1.5])
    made.bridge_s = 3.0
    made.add(4 * S, {"VDD_IN": 10.0})
    assert joules(made, 4.0) == pytest.approx(5.0 + 25.0)
    assert made.sampling(0, S).lost == {"VDD_IN": "unread for 1.0 s: no sample was taken"}
    assert made.sampling(round(1.5 * S), 4 * S).lost == {}


def test_a_domain_that_was_never_read_has_no_energy_and_says_why():
    made = series()
    made.add(0, {}, {"VDD_IN": "Permission denied"})
    assert made.lost(0) == {}  # once is no loss yet
    assert made.lost(S) == {"VDD_IN": "Permission denied"}
    assert made.joules(S) == {}
    assert made.sampling(0, S).lost == {"VDD_IN": "Permission denied"}


def test_the_total_is_sampled_only_where_all_its_parts_are():
    made = series("GPU", "CPU", "SOC", total=("GPU", "CPU"))
    for at_s, watts in enumerate(({"GPU": 3.0, "CPU": 1.0}, {"GPU": 9.0}, {"GPU": 4.0, "CPU": 2.0, "SOC": 50.0})):
        made.add(at_s * S // 10, watts)
    sampling = made.sampling(0, S // 5)
    assert (sampling.samples, sampling.peak_w, sampling.gap_max_s) == (2, 6.0, 0.2)
    assert sampling.inside == {"GPU": 3, "CPU": 2, "SOC": 1}
    powers = made.drain(S)
    assert [power if power == power else None for power in powers.total_w] == [4.0, None, 6.0]
    assert math.isnan(powers.watts["CPU"][1])


def test_a_stretch_without_samples_has_no_peak_and_is_one_gap():
    made = sampled(lambda at_s: 10.0, [0.0, 0.4])
    sampling = made.sampling(S // 10, S * 3 // 10)
    assert sampling == Sampling(0, pytest.approx(0.2), 0, {}, None, 0.0, 0.0, {"VDD_IN": 0.0}, {"VDD_IN": 0})


def test_samples_are_handed_over_once_and_the_joules_go_on():
    made = sampled(lambda at_s: 10.0, [0.0, 0.1, 0.2, 0.3])
    first, second, nothing = made.drain(S // 5), made.drain(S), made.drain(2 * S)
    assert list(first.times_ns) == [0, S // 10]
    assert list(second.times_ns) == [S // 5, S * 3 // 10]
    assert [list(powers.watts["VDD_IN"]) for powers in (first, second, nothing)] == [[10.0, 10.0], [10.0, 10.0], []]
    assert list(first.total_w) == [10.0, 10.0]
    assert joules(made, 0.3) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("responses", "stated"),
    [
        ({"a": Response(0.05), "b": Response(0.05)}, Response(0.05)),
        ({"a": Response(0.05), "b": Response(0.1)}, None),
        ({"a": Response(0.05), "b": Response(None, 0.0, None)}, None),
        ({}, None),
    ],
    ids=["same", "different", "unknown", "not stated"],
)
def test_samples_come_with_the_response_that_is_stated_for_all_of_the_total(responses, stated):
    assert series("a", "b", responses=responses).drain(1).response == stated
