"""The uncertainty of sums of energies, by known parts, and of simulated counters that are renewed every 0.1 s."""

import math
from itertools import pairwise
from random import Random

import pytest

from epochmeter.power.instrument import Domain, Instrument
from epochmeter.power.meter import EnergyMeter
from epochmeter.power.window_energy import Reading, energy_of_window
from epochmeter.results.energy_sums import Interval, sum_adjacent, sum_uncertainty, total_uncertainty_j

S, PERIOD_S, LOW_W, HIGH_W = 10**9, 0.1, 100.0, 300.0


def interval(opened_s, closed_s, half_width_j, energy_j=10.0, **parts):
    return Interval(
        round(opened_s * S), round(closed_s * S), {"energy_j": energy_j, "energy_uncertainty_j": half_width_j, **parts}
    )


def counted(opened_s, closed_s, power_w=10.0):
    """An interval of a counter at constant power, whose only error is the age of its readings: 1 J at 10 W."""
    stale_j = power_w * PERIOD_S
    return interval(
        opened_s, closed_s, stale_j, energy_j=power_w * (closed_s - opened_s),
        stale_j=stale_j, period_s=PERIOD_S, age_s=PERIOD_S / 2,
    )  # fmt: skip


def test_only_unsampled_power_is_independent_between_windows_of_an_earlier_version():
    terms = {"unsampled_j": 3.0, "period_s": 0.1}
    assert total_uncertainty_j([interval(0, 5, 5.0, **terms)] * 2) == pytest.approx(math.hypot(4 + 4, 3, 3))
    long = [interval(0, 5, 5.0, 300.0, **terms)] * 2  # 60 W
    assert total_uncertainty_j(long) == pytest.approx(math.hypot(6 + 6, 3, 3))


def test_errors_that_may_have_the_same_sign_are_added():
    assert total_uncertainty_j([interval(0, 5, 2.0), interval(9, 14, 3.0)]) == 5.0
    in_step = {"in_step_j": 3.0, "unsampled_j": 1.0, "stale_j": 0.0, "period_s": 0.1}
    assert total_uncertainty_j([interval(0, 1e6, 3.0, **in_step)] * 4) == pytest.approx(12.0, abs=1e-4)


def test_rounding_and_missed_power_are_independent():
    parts = {"step_j": 1.0, "unsampled_j": 3.0, "stale_j": 0.0, "in_step_j": 0.0, "period_s": 1e-9}
    assert total_uncertainty_j([interval(0, 5, 4.0, **parts)] * 4) == pytest.approx(2.0 + 6.0)


def test_intervals_without_gaps_have_the_error_of_their_first_and_last_border():
    windows = [counted(*borders) for borders in pairwise(range(101))]
    assert total_uncertainty_j(windows) == pytest.approx(10.0 * PERIOD_S)
    assert total_uncertainty_j(windows[::2]) > 20 * PERIOD_S, "with gaps of 1 s"
    assert total_uncertainty_j(windows[:1]) == pytest.approx(10.0 * PERIOD_S)


def test_sum_of_short_gaps_is_not_much_more_uncertain_than_they_are_long():
    gaps = [counted(at_s, at_s + 0.001) for at_s in range(100)]
    late_j, random_j = 100 * 0.001 * 10.0, 1.96 * 10.0 * math.sqrt(100 * 0.001 * PERIOD_S)
    assert total_uncertainty_j(gaps) == pytest.approx(late_j + random_j)
    assert total_uncertainty_j(gaps) < 100 * 10.0 * PERIOD_S / 30


def test_intervals_of_two_boots_have_no_common_border():
    first, second = counted(1000, 1010), counted(10, 20)
    assert total_uncertainty_j([first, second]) == pytest.approx(2 * 10.0 * PERIOD_S)


def test_short_interval_without_a_tick_is_as_uncertain_as_the_power_of_the_others():
    without = counted(20, 20.5)._replace(term={**counted(20, 20.5, 0.0).term})
    assert total_uncertainty_j([counted(0, 10), without]) == pytest.approx(2 * 10.0 * PERIOD_S)


def test_parts_of_a_time_without_gaps_have_one_step_and_one_period():
    windows = [interval(at_s, at_s + 0.9, 3.0, stale_j=2.0, step_j=1.0, period_s=0.1) for at_s in range(10)]
    between = [interval(at_s + 0.9, at_s + 1, 4.0, stale_j=3.0, step_j=1.0, period_s=0.1) for at_s in range(10)]
    run = sum_adjacent([sum_uncertainty(windows), sum_uncertainty(between)])
    assert (run.rest_j, run.stale_j) == pytest.approx((0.0, 3.0))
    assert run.step_j == pytest.approx(math.sqrt(10))


def simulated(chance, *, gap_s, count=30):
    """Return measured and true joules, and stated half-widths, of windows of 1 s, of the gaps, and of all together.

    Power is high in windows and low in gaps, the worst case for a counter that is late.
    """
    phase_s = chance.uniform(0, PERIOD_S)
    borders_s, at_s = [0.0], 0.0
    for _ in range(count):
        at_s += chance.uniform(0.9, 1.1)
        borders_s += [at_s, at_s := at_s + gap_s * chance.uniform(0.5, 1.5)]
    true_j = [0.0]
    for place, (before_s, after_s) in enumerate(pairwise(borders_s)):
        true_j.append(true_j[-1] + (after_s - before_s) * (LOW_W if place % 2 else HIGH_W))

    def counted_j(at_s):
        """The energy up to the last tick."""
        tick_s = phase_s + math.floor((at_s - phase_s) / PERIOD_S) * PERIOD_S
        place = max(0, sum(border_s <= tick_s for border_s in borders_s) - 1)
        return true_j[place] + (tick_s - borders_s[place]) * (LOW_W if place % 2 else HIGH_W)

    counter = Instrument(Domain("counter", PERIOD_S, "GPU", limit_w=HIGH_W), float)
    meter = EnergyMeter(counters={"gpu": counter}, total=["gpu"], covers="GPU")
    readings = [Reading(round(at_s * S), {"gpu": counted_j(at_s)}) for at_s in borders_s]
    terms = [
        Interval(
            *(each.at_ns for each in pair), energy_of_window(*pair, meter, (pair[1].at_ns - pair[0].at_ns) / S).term
        )
        for pair in pairwise(readings)
    ]
    true_parts_j = [after_j - before_j for before_j, after_j in pairwise(true_j)]
    groups = {"windows": slice(0, None, 2), "gaps": slice(1, None, 2)}
    sums = {name: sum_uncertainty(terms[of]) for name, of in groups.items()}
    measured_j = {name: math.fsum(each.term["energy_j"] for each in terms[of]) for name, of in groups.items()}
    found = {
        name: (measured_j[name], math.fsum(true_parts_j[of]), sums[name].half_width_j) for name, of in groups.items()
    }
    return {**found, "all": (sum(measured_j.values()), true_j[-1], sum_adjacent([*sums.values()]).half_width_j)}


@pytest.mark.parametrize(("gap_s", "narrower"), [(0.002, 9), (0.02, 2.5), (0.2, 1.3)])
def test_sums_of_a_simulated_counter_cover_and_are_narrower_than_all_borders_together(gap_s, narrower):
    chance = Random(gap_s)
    runs = [simulated(chance, gap_s=gap_s) for _ in range(60)]
    for name in runs[0]:
        covered = [abs(measured_j - true_j) <= half_j for measured_j, true_j, half_j in (run[name] for run in runs)]
        assert sum(covered) >= 0.95 * len(runs), name
    linear_j = 30 * HIGH_W * PERIOD_S
    assert max(run["gaps"][2] for run in runs) < linear_j / narrower
    assert max(run["all"][2] for run in runs) == pytest.approx(HIGH_W * PERIOD_S)
