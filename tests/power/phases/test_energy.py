"""Energy by phase, on epochs whose energy by phase is known."""

import math
import sys
from array import array
from itertools import product

import numpy as np
import pytest
from known import FOUR, LEVELS_W, TWO, Sensor, epoch, steps

from trainmeter.power.phases import energy as phases
from trainmeter.power.phases.energy import phase_energy
from trainmeter.power.phases.timeline import PHASES, Timeline

SLOW_SENSOR = Sensor(averaging_s=0.1, lag_s=0.05)


def told(known, seed=0):
    return phase_energy(*known.given(), seed=seed)


def covered(answers):
    """The share of phases, of answers that were given, whose known energy lies in the interval."""
    return np.mean(
        [
            abs(answer.energy_j[phase] - known.known_j[phase]) <= answer.half_width_j[phase] + 1e-9
            for known, answer in answers
            for phase in PHASES
        ]
    )


def answered(count=4, **of):
    """Each of a few epochs, with its answer, where one was given."""
    trials = [epoch(seed=seed, **of) for seed in range(count)]
    return [(known, answer) for known in trials if not (answer := told(known)).reason]


class TestTimeline:
    ROWS = array("f", [0.5, 0.25, 0.125, 1.0, 0.25, 4.0, 0.0, 0.5])

    def test_a_gap_begins_with_overhead_and_ends_with_the_stall(self):
        line = Timeline(self.ROWS, 2.5)
        assert line.spent_s(np.array([0.25])).tolist() == [[0.25, 0, 0, 0]]
        assert line.spent_s(np.array([0.5])).tolist() == [[0.25, 0.25, 0, 0]]
        assert line.spent_s(np.array([0.6])) == pytest.approx(np.array([[0.25, 0.25, 0.1, 0]]))

    def test_a_stall_is_no_longer_than_its_gap(self):
        assert Timeline(self.ROWS, 2.5).phases_s.tolist() == [0.25 + 0.125, 0.5, 0.125, 1.5]

    def test_what_the_steps_leave_of_the_window_is_overhead(self):
        line = Timeline(self.ROWS, 2.5)
        assert line.spent_s(np.array([2.375, 2.5]))[:, 0].tolist() == [0.25, 0.375]

    def test_steps_that_end_late_by_their_rounding_end_with_the_window(self):
        line = Timeline(self.ROWS, 2.3749)
        assert line.phases_s.sum() == pytest.approx(2.3749, abs=1e-12)
        assert line.spent_s(np.array([9.9])).sum() == pytest.approx(2.3749, abs=1e-12)

    def test_shares_are_of_the_stretch_that_ends_at_the_moment(self):
        assert Timeline(self.ROWS, 2.5).shares(np.array([0.5]), 0.4) == pytest.approx(np.array([[0.375, 0.625, 0, 0]]))

    def test_the_time_of_a_tiny_phase_is_counted_with_the_largest_and_given_back(self):
        rows = array("f", [0.25, 0.25, 0.0005, 0.7495])
        line = Timeline(rows, 1.0)
        assert line.own.tolist() == [False, True, False, True]
        assert line.columns_s == pytest.approx([0.25, 0.75], rel=1e-6)
        energy_j, half_width_j = line.split(np.array([1.0, 15.0]), np.array([0.1, 0.2]))
        assert energy_j == pytest.approx([0, 1, 0.01, 14.99], abs=1e-5)
        assert half_width_j == pytest.approx([0, 0.1, 0.01, 0.2], abs=1e-5)


@pytest.fixture(scope="class")
def answer(request):
    return told(request.cls.KNOWN)


class TestWhereSamplingResolvesThePhases:
    KNOWN = epoch(seed=1, step_s=0.5, sensor=Sensor(noise_w=0.02))

    def test_energy_is_booked_on_the_phase_it_was_used_in(self, answer):
        assert answer.method == "direct"
        assert answer.energy_j == pytest.approx(self.KNOWN.known_j, rel=0.02)

    def test_it_sums_to_the_gross_energy(self, answer):
        assert math.fsum(answer.energy_j.values()) == pytest.approx(self.KNOWN.gross_j, rel=1e-12)

    def test_one_seed_gives_one_answer(self, answer):
        assert told(self.KNOWN) == answer
        assert told(self.KNOWN, seed=1).half_width_j != answer.half_width_j

    def test_it_is_scaled_to_a_gross_energy_that_another_instrument_tells(self):
        answer = told(self.KNOWN._replace(gross_j=1.1 * self.KNOWN.gross_j))
        assert answer.energy_j["stall"] == pytest.approx(1.1 * self.KNOWN.known_j["stall"], rel=0.02)

    def test_samples_that_were_not_read_are_left_out(self):
        watts = array("d", self.KNOWN.watts)
        for index in range(0, len(watts), 7):
            watts[index] = math.nan
        assert told(self.KNOWN._replace(watts=watts)).energy_j == pytest.approx(self.KNOWN.known_j, rel=0.02)

    def test_a_gap_in_the_samples_is_no_phase_s(self):
        times_ns, watts = self.KNOWN.times_ns, self.KNOWN.watts
        kept = {"times_ns": times_ns[:800] + times_ns[1200:], "watts": watts[:800] + watts[1200:]}
        assert told(self.KNOWN._replace(**kept)).energy_j == pytest.approx(self.KNOWN.known_j, rel=0.03)

    def test_of_a_long_window_stretches_from_all_over_it_are_as_telling(self, monkeypatch):
        monkeypatch.setattr(phases, "MOST_SAMPLES", 1_500)
        monkeypatch.setattr(phases, "STRETCHES", 5)
        answer = told(self.KNOWN)
        assert len(self.KNOWN.times_ns) > 2 * 1_500
        assert answer.energy_j == pytest.approx(self.KNOWN.known_j, rel=0.03)

    def test_what_the_sensor_does_is_found(self):
        answer = told(epoch(seed=2, step_s=2.0, sensor=SLOW_SENSOR))
        assert answer.averaging_s == pytest.approx(0.1, rel=0.15)
        assert answer.lag_s == pytest.approx(0.05, abs=0.01)


class TestWhereItDoesNot:
    KNOWN = epoch(seed=1, shares=TWO, sensor=SLOW_SENSOR)

    def test_the_levels_come_from_stretches_whose_shares_vary(self, answer):
        assert answer.method == "regression"
        assert answer.energy_j == pytest.approx(self.KNOWN.known_j, rel=0.1, abs=0.02 * self.KNOWN.gross_j)

    def test_it_sums_to_the_gross_energy(self, answer):
        assert math.fsum(answer.energy_j.values()) == pytest.approx(self.KNOWN.gross_j, rel=1e-12)

    def test_a_phase_without_time_used_nothing(self, answer):
        assert (answer.energy_j["copy"], answer.half_width_j["copy"]) == (0.0, 0.0)

    def test_a_phase_with_next_to_no_time_is_known_to_no_better_than_what_it_is_given(self, answer):
        assert 0 < answer.energy_j["overhead"] == answer.half_width_j["overhead"] < 0.001 * self.KNOWN.gross_j


HARD = {
    "instant": {"step_s": 0.5, "sensor": Sensor()},
    "noisy": {"step_s": 0.5, "sensor": Sensor(noise_w=1.0, step_w=0.4), "shares": TWO},
    "averaging": {"sensor": SLOW_SENSOR, "shares": TWO},
    "fading": {"sensor": Sensor(averaging_s=0.05, lag_s=0.05, fading=True), "shares": TWO},
    "held": {"step_s": 0.5, "sensor": Sensor(held_s=0.097), "shares": TWO},
    "warming": {"sensor": SLOW_SENSOR, "warming": 0.1, "ramp": 0.6, "shares": TWO},
}


@pytest.mark.system
def test_the_intervals_hold_what_was_used():
    answers = {name: answered(**of) for name, of in HARD.items()}
    assert {name: len(given) >= 3 for name, given in answers.items()} == dict.fromkeys(HARD, True)
    assert covered([found for given in answers.values() for found in given]) >= 0.9


def test_what_warms_up_is_not_booked_on_the_phase_that_grows():
    known = epoch(seed=1, shares=TWO, sensor=SLOW_SENSOR, warming=0.1, ramp=0.6)
    assert told(known).energy_j["stall"] == pytest.approx(known.known_j["stall"], rel=0.05)


FLAT = dict.fromkeys(LEVELS_W, 10.0)
REFUSED = {
    "steps all alike": ({"window_s": 120.0, "uneven": 0.0, "sensor": SLOW_SENSOR}, "hardly vary"),
    "alike but for a slow ramp, in a machine that warms up": (
        {"window_s": 120.0, "uneven": 0.0, "ramp": 0.6, "warming": 0.1, "sensor": SLOW_SENSOR},
        "hardly vary",
    ),
    "power that the phases have no part in": (
        {"levels_w": FLAT, "sensor": Sensor(noise_w=3.0), "step_s": 0.5},
        "the phases explain",
    ),
    "power that never changes": ({"levels_w": FLAT, "sensor": Sensor(noise_w=0.0), "step_s": 0.5}, "explain 0%"),
    "a sensor slower than the window is long": (
        {"sensor": Sensor(averaging_s=1.0), "shares": TWO, "step_s": 0.5},
        "the window lasts",
    ),
    "more noise than shares": ({"sensor": Sensor(0.1, noise_w=1.0), "uneven": 0.6}, "is the most"),
}


@pytest.mark.parametrize(("of", "why"), REFUSED.values(), ids=REFUSED)
def test_nothing_is_told_where_nothing_can_be(of, why):
    answers = [told(epoch(seed=seed, **of)) for seed in range(2)]
    assert [dict(answer.energy_j) for answer in answers] == [{}, {}]
    assert any(why in answer.reason for answer in answers), [answer.reason for answer in answers]


def test_two_phases_that_only_vary_together_are_not_told_apart():
    lasts_s = steps(60.0, 0.06, FOUR, np.random.default_rng(1), uneven=0.3, ramp=0.0)
    lasts_s[:, 2] = 0.3 * lasts_s[:, 1]
    assert "only together" in told(epoch(seed=1, lasts_s=lasts_s, sensor=SLOW_SENSOR)).reason


def test_intervals_that_fail_on_known_waves_are_not_given(monkeypatch):
    monkeypatch.setattr("trainmeter.power.phases.waves.Trial.coverage", lambda trial: 0.5)
    assert told(epoch(seed=1, step_s=0.5)).reason.startswith("on known waves, its intervals hold the truth in 50%")


def test_samples_that_tell_of_another_machine_are_not_scaled_to_this_one():
    known = epoch(seed=1, step_s=0.5)
    assert "tell of other things" in told(known._replace(gross_j=2 * known.gross_j)).reason


def test_steps_of_another_window_are_noticed():
    known = epoch(seed=1, step_s=0.5)
    assert "not its own" in told(known._replace(closed_ns=known.closed_ns - 5_000_000_000)).reason


def test_a_window_with_few_samples_or_steps_has_none():
    known = epoch(seed=1, step_s=0.5)
    assert (
        "samples of power in a half"
        in told(known._replace(times_ns=known.times_ns[:900], watts=known.watts[:900])).reason
    )
    assert "no steps" in told(known._replace(rows=array("f"))).reason


def test_without_numpy_there_is_a_reason_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert "pip install numpy" in phases.phase_energy(array("f"), 0, 1, array("q"), array("d"), 1.0).reason


@pytest.mark.system
def test_the_intervals_hold_what_was_used_whatever_the_steps_and_the_sensor():
    given = [
        found
        for step_s, averaging_s, lag_s in product((0.004, 0.06, 0.5), (0.0, 0.1, 1.0), (0.0, 0.05))
        for shares, (noise_w, step_w) in product((FOUR, TWO), ((0.2, 0.04), (1.0, 0.4)))
        for found in answered(
            count=2,
            window_s=max(60.0, 300 * averaging_s),
            step_s=step_s,
            shares=shares,
            sensor=Sensor(averaging_s, lag_s, noise_w, step_w),
        )
    ]
    assert len(given) >= 50
    assert covered(given) >= 0.9
