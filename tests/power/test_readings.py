"""The joules at the border of a window, interpolated between readings of a known power."""

import random

import pytest

from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.readings import RECENT_NS, Readings
from epochmeter.power.window_energy import Reading, energy_of_window

SECOND = 1_000_000_000


def reading(at_s, joules, **more):
    return Reading(round(at_s * SECOND), {"cpu": joules, **more}, 1000, 1000)


def readings(*taken, borders=()):
    made = Readings()
    for each in taken:
        made.add(each, is_at_border=each.at_ns / SECOND in borders)
    return made


def test_joules_at_a_moment_are_interpolated_between_the_readings_around_it():
    made = readings(reading(1, 10.0), reading(2, 30.0), reading(3, 90.0))
    at = made.at(round(1.75 * SECOND))
    assert (at.joules, at.apart_ns) == ({"cpu": 25.0}, SECOND // 4)
    assert (at.begun_ns, at.ended_ns) == (at.at_ns, 2 * SECOND + 1000), "they enclose the nearest reading"
    at = made.at(round(2.25 * SECOND))
    assert (at.joules, at.begun_ns, at.ended_ns) == ({"cpu": 45.0}, 2 * SECOND - 1000, at.at_ns)
    assert made.at(2 * SECOND).joules == {"cpu": 30.0}


def test_moment_outside_of_the_readings_has_the_nearest_one_with_its_distance():
    made = readings(reading(1, 10.0), reading(2, 30.0))
    assert made.at(0) == reading(1, 10.0)._replace(apart_ns=SECOND)
    assert made.at(9 * SECOND) == reading(2, 30.0)._replace(apart_ns=7 * SECOND)
    with pytest.raises(ValueError, match="not read"):
        Readings().at(0)


def test_uncertainty_includes_the_energy_after_the_last_reading():
    """100 W from 1 s to 4.5 s: the readings have 300 J of 350 J."""
    counter = Instrument(Domain("counter", 0.001, "the CPU"), lambda: 0.0)
    meter = EnergyMeter(total=["cpu"], covers="the CPU", counters={"cpu": counter})
    made = readings(*(reading(at_s, 100.0 * at_s) for at_s in range(1, 5)))
    metrics = energy_of_window(made.at(SECOND), made.at(round(4.5 * SECOND)), meter, 3.5).metrics
    assert metrics["energy_j"] == pytest.approx(300.0)
    assert 350.0 <= metrics["energy_j"] + metrics["energy_uncertainty_j"] < 351.0


def test_counter_that_was_reset_or_failed_between_two_readings_is_missing():
    made = readings(reading(1, 10.0, gpu=5.0), reading(2, 3.0, gpu=6.0), Reading(3 * SECOND, {"gpu": 7.0}))
    assert made.at(round(1.5 * SECOND)).joules == {"gpu": 5.5}
    assert made.at(round(2.5 * SECOND)).joules == {"gpu": 6.5}


def test_old_readings_are_thinned_except_around_possible_borders():
    made = readings(*(reading(number / 10, number) for number in range(100)), borders=(1.0, 2.0))
    now_ns = round(9.9 * SECOND)
    made.thin(now_ns, [round(5.05 * SECOND)])
    recent = RECENT_NS * 10 // SECOND + 1
    assert len(made) == 2 + 2 + recent
    assert made.at(round(5.05 * SECOND)).joules["cpu"] == pytest.approx(50.5)
    assert made.at(1 * SECOND).joules == {"cpu": 10}
    made.discard_before(round(5.05 * SECOND))
    assert len(made) == 2 + recent


@pytest.mark.parametrize("late_s", [0.001, 0.05])
def test_energy_of_windows_of_a_second_is_within_its_uncertainty(late_s):
    """Power alternates between 40 and 120 W; readings are taken some time after the borders, and periodically."""
    generator, errors = random.Random(0), []
    counter = Instrument(Domain("counter", 0.001, "the CPU"), lambda: 0.0)
    meter = EnergyMeter(total=["cpu"], covers="the CPU", counters={"cpu": counter})
    for _ in range(200):
        phase_s, opened_s = generator.random(), 1 + generator.random()

        def joules(at_s, phase_s=phase_s):
            whole, rest = divmod(at_s + phase_s, 0.35)
            return whole * (0.2 * 120 + 0.15 * 40) + min(rest, 0.2) * 120 + max(0.0, rest - 0.2) * 40

        closed_s = opened_s + 1
        times_s = [*(number / 10 for number in range(40)), opened_s + generator.uniform(0, late_s)]
        times_s.append(closed_s + generator.uniform(0, late_s))
        made = readings(*(reading(at_s, joules(at_s)) for at_s in sorted(times_s)))
        borders = made.at(round(opened_s * SECOND)), made.at(round(closed_s * SECOND))
        metrics = energy_of_window(*borders, meter, 1.0).metrics
        true_j = joules(closed_s) - joules(opened_s)
        errors.append(abs(metrics["energy_j"] - true_j) / true_j)
        assert abs(metrics["energy_j"] - true_j) <= metrics["energy_uncertainty_j"]
    assert max(errors) < (0.002 if late_s < 0.01 else 0.05)
