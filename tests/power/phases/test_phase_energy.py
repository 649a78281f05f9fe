"""Energy by phase of simulated epochs, whose true energy by phase is known."""

import math
from array import array
from itertools import product

import numpy as np
import pytest
from power.known_phases import FOUR, HELD_OUT, LEVELS_W, TWO, Sensor, epoch, facts

from epochmeter.power.phases.phase_energy import phase_energy
from epochmeter.power.phases.step_timeline import PHASES, StepTimeline, step_borders_s
from epochmeter.power.uncertainty import Response

SLOW = Sensor(averaging_s=0.1, lag_s=0.05)
TOLERANCE = 0.01  # an energy counts as wrong if it is outside its interval by more than this fraction of its true value


def estimated(known, response=None, half_width_j=0.0):
    return phase_energy(*known.given(response), half_width_j)


def outside(known, answer):
    """For each phase with an energy: how far the true value is outside the interval, as a fraction of it."""
    return {
        phase: (abs(joules - known.known_j[phase]) - answer.half_width_j[phase]) / max(known.known_j[phase], 1e-9)
        for phase, joules in answer.energy_j.items()
        if known.known_j[phase] > 0.002 * known.gross_j
    }


ROWS = array("f", [0.5, 0.25, 0.125, 1.0, 0.25, 4.0, 0.0, 0.5])


def test_gap_begins_with_overhead_and_ends_with_the_stall():
    line = StepTimeline(ROWS, 2.5)
    assert line.phases_s.tolist() == [0.25 + 0.125, 0.5, 0.125, 1.5], "a stall is at most its gap"
    spent_s = line.spent_s(np.array([0.25, 0.5, 0.6, 2.375, 2.5]))
    assert spent_s[:2].tolist() == [[0.25, 0, 0, 0], [0.25, 0.25, 0, 0]]
    assert spent_s[2] == pytest.approx(np.array([0.25, 0.25, 0.1, 0]))
    assert spent_s[3:, 0].tolist() == [0.25, 0.375]
    rounded = StepTimeline(ROWS, 2.3749)  # less than its steps
    assert [rounded.phases_s.sum(), rounded.spent_s(np.array([9.9])).sum()] == pytest.approx([2.3749] * 2, abs=1e-12)


def test_phase_at_a_moment_skips_phases_without_time():
    moments = [0.0, 0.125, 0.3, 0.55, 0.75, 1.625, 1.75, 2.0, 2.4]
    phase, elapsed = StepTimeline(ROWS, 2.5).at(np.array(moments))
    names = "overhead overhead stall copy compute stall stall compute overhead"
    assert [PHASES[index] for index in phase] == names.split()
    assert elapsed == pytest.approx([0, 0.5, 0.2, 0.4, 0.125, 0, 0.5, 0.25, 0.2])


def test_borders_of_steps_are_on_the_clock_of_the_window_and_skip_steps_without_time():
    rows = array("f", [*ROWS, 0.0, 0.0, 0.0, 0.0])
    assert step_borders_s(rows, 3_000_000_000).tolist() == [3.0, 4.625, 5.375]
    assert step_borders_s(array("f", [0.0] * 4), 0) is step_borders_s(array("f"), 0) is None


def test_energy_is_that_of_the_phase_that_used_it_with_the_gross_uncertainty():
    known = epoch(seed=1, step_s=0.5, sensor=Sensor(noise_w=0.02))
    answer, wider = (estimated(known, half_width_j=share * known.gross_j) for share in (0.0, 0.03))
    assert answer.reason is None
    assert answer.energy_j == wider.energy_j == pytest.approx(known.known_j, rel=0.02)
    assert math.fsum(answer.energy_j.values()) == pytest.approx(known.gross_j, rel=1e-12)
    added_j = {phase: wider.half_width_j[phase] - answer.half_width_j[phase] for phase in PHASES}
    assert added_j == pytest.approx({phase: 0.03 * joules for phase, joules in answer.energy_j.items()})


def test_smoothing_at_borders_is_corrected_within_a_bound_of_the_averaging_time():
    answers = {}
    for averaging_s in (0.0, 0.05, 0.1):
        known = epoch(seed=1, step_s=0.5, shares=TWO, sensor=Sensor(averaging_s, noise_w=0.02))
        answers[averaging_s] = estimated(known, Response(averaging_s))
        assert answers[averaging_s].energy_j["stall"] == pytest.approx(known.known_j["stall"], rel=0.02)
    widths = [answer.half_width_j["stall"] for answer in answers.values()]
    assert widths == sorted(widths)


def test_unknown_sensor_widens_the_intervals():
    known = epoch(seed=1, step_s=0.5, shares=TWO, sensor=Sensor(averaging_s=0.05, lag_s=0.02))
    stated, unknown = (estimated(known, response).half_width_j for response in (Response(0.05, 0.02), None))
    assert all(unknown[phase] > 1.05 * stated[phase] for phase in ("stall", "compute"))


POWER = {"flat": None, **HELD_OUT}
SOME = ("flat", "compute ramps down", "workers refill during compute")
GOAL = {
    "instant, known": (Sensor(lag_s=0.05), True, {0.06: FOUR, 0.5: TWO}, POWER, 24),
    "100 ms, known": (Sensor(averaging_s=0.1), True, {0.5: TWO, 1.6: FOUR}, POWER, 18),
    "50 ms, estimated": (Sensor(averaging_s=0.05, lag_s=0.02), False, {0.5: TWO}, POWER, 4),
    "INA3221, 64 samples, known": (Sensor(0.422, is_filter=True), True, {0.5: TWO, 2.5: TWO, 8.0: TWO}, SOME, 4),
    "INA3221, 16 samples, known": (Sensor(0.106, is_filter=True), True, {0.15: TWO, 2.5: TWO}, SOME, 4),
    "INA3221, 4 samples, estimated": (Sensor(0.0264, is_filter=True), False, {0.06: TWO, 0.5: TWO}, SOME, 4),
    "25 of 101 ms, known": (Sensor(0.025, held_s=0.101, period_s=0.05), True, {0.06: TWO, 0.5: TWO}, SOME, 4),
}
"""Sensor, whether its averaging time and lag are known, phases by step duration in seconds, power, and the least number
of energies that are given."""


@pytest.mark.parametrize(("sensor", "is_known", "steps_s", "power", "least"), GOAL.values(), ids=GOAL)
def test_at_most_5_percent_of_energies_are_outside_their_intervals(sensor, is_known, steps_s, power, least):
    """Held-out flat and structured power, with long and short steps."""
    given, wrong = 0, []
    for name, (seed, (step_s, shares)) in product(power, enumerate(steps_s.items())):
        known = epoch(seed=seed, step_s=step_s, shares=shares, sensor=sensor, profile=POWER[name])
        errors = outside(known, estimated(known, facts(sensor, seed) if is_known else None))
        given += len(errors)
        wrong += [(name, step_s, phase) for phase, error in errors.items() if error > TOLERANCE]
    assert given >= least
    assert len(wrong) <= 0.05 * given, wrong


def test_contradicted_sensor_gives_no_energy():
    """Its power is 60 ms late, not at once; the response that fits best may be a wrong one too."""
    known = epoch(seed=1, step_s=0.5, sensor=Sensor(lag_s=0.06))
    answer = estimated(known, Response(0.0, 0.0))
    assert (answer.energy_j, "contradict" in answer.reason) == ({}, True)
    assert max(outside(known, estimated(known, Response(0.0, 0.06))).values()) < 0


def test_training_in_step_with_the_renewal_of_readings_gives_no_energy():
    """Readings are of the same parts of every step, though the samples are from all over the steps."""
    part_time = Sensor(0.025, held_s=0.101, period_s=0.05)
    given = {}
    for uneven in (0.0, 0.3):
        known = epoch(seed=1, step_s=0.303, shares=TWO, uneven=uneven, sensor=part_time)
        answer = estimated(known, Response(0.025, 0.0, 0.1))
        given[uneven] = {"stall", "compute"} & answer.energy_j.keys()
        assert all(error < TOLERANCE for error in outside(known, answer).values())
    assert given == {0.0: set(), 0.3: {"stall", "compute"}}


def test_samples_of_one_reading_count_once():
    """100 readings of a sensor that holds each for 0.6 s, in 3000 samples."""
    known = epoch(seed=1, step_s=3.0, shares=TWO, sensor=Sensor(held_s=0.6))
    assert "power samples in half" in estimated(known, Response(0.0, 0.0, 0.6)).reason


def test_only_phases_that_the_sensor_resolves_are_given():
    known = epoch(seed=1, step_s=2.0, sensor=Sensor(averaging_s=0.2))
    answer = estimated(known, Response(0.2))
    assert set(answer.energy_j) == {"compute"}
    assert max(outside(known, answer).values()) < 0
    assert [phase for phase in PHASES if phase in answer.reason] == ["overhead", "stall", "copy"]


FLAT = dict.fromkeys(LEVELS_W, 10.0)
QUARTERS = (0.25, 0.25, 0.25, 0.25)
ABSENT = {
    "steps shorter than the averaging time": ({"sensor": SLOW, "shares": TWO}, Response(0.1, 0.05), "uncertain by"),
    "the same, of an unknown sensor": ({"sensor": SLOW, "shares": TWO}, None, "uncertain by"),
    "flat power through an unknown sensor":
        ({"levels_w": FLAT, "sensor": Sensor(noise_w=3.0), "step_s": 0.5}, None, "explain"),
    "an averaging time longer than any phase":
        ({"sensor": Sensor(averaging_s=1.0), "step_s": 0.5, "shares": QUARTERS}, Response(1.0), "too short"),
}  # fmt: skip


@pytest.mark.parametrize(("of", "sensor", "why"), ABSENT.values(), ids=ABSENT)
def test_unresolved_phases_are_absent_with_the_reason(of, sensor, why):
    for seed in range(2):
        known = epoch(seed=seed, **of)
        answer = estimated(known, sensor)
        assert {phase for phase in answer.energy_j if known.known_j[phase] > 0.001 * known.gross_j} == set()
        assert why in answer.reason


def test_sampling_in_step_with_the_training_gives_no_energy():
    """Samples in the same third of every stall do not represent the rest of it."""
    known = epoch(seed=1, step_s=0.5, shares=TWO, uneven=0.0, sensor=Sensor(noise_w=0.0))
    given = []
    for period_s in (0.05, 0.25):  # the latter at 0.01 and at 0.26 s of each step of 0.5 s
        times_ns = known.opened_ns + np.arange(0.01, 59, period_s) * 1e9
        watts = array("d", np.interp(times_ns, known.times_ns, known.watts))
        sampled = known._replace(times_ns=array("q", times_ns.astype(int)), watts=watts)
        given.append({"stall", "compute"} & estimated(sampled, Response(0.0)).energy_j.keys())
    assert given == [{"stall", "compute"}, set()]


def test_contradictory_or_incomplete_measurements_are_refused_with_the_reason():
    known = epoch(seed=1, step_s=0.5)
    refused = {
        "add up to": {"gross_j": 2 * known.gross_j},
        "used no energy": {"gross_j": 0.0, "watts": array("d", bytes(8 * len(known.watts)))},
        "longer than the window": {"closed_ns": known.closed_ns - 5_000_000_000},
        "power samples in half": {"times_ns": known.times_ns[:900], "watts": known.watts[:900]},
        "no steps": {"rows": array("f")},
        "window has no steps": {"rows": array("f", [0.0] * 8)},  # as long as the resolution of their clock
    }
    assert [why for why, changes in refused.items() if why not in estimated(known._replace(**changes)).reason] == []
