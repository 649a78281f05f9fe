"""What an epoch of each point costs: absent is absent, repeats tell what is as good."""

import random
from dataclasses import replace
from statistics import fmean

import pytest
from sweeps import trained

from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import also_as_good, comparable, costs, indistinguishable_from_best, max_power

HIGHEST = "the highest limit that the devices take"
UNKNOWN = ", as no run tells the highest limit of the devices"
LIMIT = f"the largest limit that was applied{UNKNOWN}"
PEAK = f"the largest power sampled{UNKNOWN}"


def costing(
    number, time_s, energy_j=None, *, peak_w=None, limit_w=None, highest_w=None, power_limited_devices=1, **keys
):
    """A run whose steady epoch took that, and that so many devices were limited for."""
    steady = {"e2e_s": time_s, "energy_j": energy_j, "power_peak_w": peak_w}
    limits = {"power_limit_w": limit_w, "power_limit_max_w": highest_w}
    total = {name: watts for name, watts in limits.items() if watts is not None}
    return replace(
        trained(number, 100.0, steady=steady, total=total, **keys),
        power_limited_devices=power_limited_devices if total else None,
    )


def of(*runs):
    return costs(group_repeats(list(runs)))


def test_repeats_are_one_cost_of_several_values():
    (told,) = of(costing(0, 10.0, 100.0), costing(1, 12.0, 110.0, repeat=1))
    assert (told.times_s, told.joules, told.covers) == ([10.0, 12.0], [100.0, 110.0], "GPUs used")
    assert (told.time_s, told.energy_j, told.power_w) == pytest.approx((11.0, 105.0, 105 / 11))


@pytest.mark.parametrize("time_s", [None, float("nan"), float("inf"), 0.0])
def test_a_point_without_a_time_has_no_cost(time_s):
    assert [told.title for told in of(costing(0, time_s), costing(1, 10.0, batch=128))] == ["batch 128"]


@pytest.mark.parametrize("energy_j", [None, float("nan"), float("inf"), -1.0])
def test_energy_that_a_run_lacks_is_absent_of_its_point(energy_j):
    (told,) = of(costing(0, 10.0, 100.0), replace(costing(1, 10.0, energy_j, repeat=1), energy_covers="GPUs used"))
    assert (told.joules, told.energy_j, told.power_w, told.covers) == ((), None, None, None)


def test_energies_of_different_things_stand_apart():
    module = replace(costing(2, 10.0, 50.0, batch=256), energy_covers="module")
    told = comparable(of(module, costing(0, 10.0, 100.0), costing(1, 10.0, 100.0, batch=128), costing(3, 9.0, batch=8)))
    assert {covers: [cost.title for cost in group] for covers, group in told.items()} == {
        "GPUs used": ["batch 64", "batch 128"],
        "module": ["batch 256"],
    }


def test_repeats_of_one_job_that_cover_different_things_have_no_energy():
    module = replace(costing(1, 10.0, 50.0, repeat=1), energy_covers="module")
    assert of(costing(0, 10.0, 100.0), module)[0].covers is None


@pytest.mark.parametrize(
    ("values", "best", "expected"),
    [
        ([10.0], [10.0], True),
        ([10.1], [10.0], False),
        ([10.0, 10.0], [10.0, 10.0], True),
        ([11.0, 11.0], [10.0, 10.0], False),
        ([10.5, 11.5], [10.0, 11.0], True),
        ([20.0, 20.1], [10.0, 10.1], False),
        ([10.5], [10.0, 11.0, 10.2], True),
        ([10.59], [10.0, 10.1, 10.2], True),  # 10.1 + 4.303 x 0.1 x sqrt(1 + 1/3) = 10.597
        ([10.61], [10.0, 10.1, 10.2], False),
        ([15.0], [10.0, 10.1, 10.2], False),
        ([10.0, 11.0, 10.2], [10.5], True),
    ],
)
def test_as_good_is_what_intervals_do_not_tell_apart(values, best, expected):
    assert indistinguishable_from_best([values], best) == [expected]


def test_what_is_as_good_is_judged_of_all_together():
    """One of twenty whose interval alone would tell it apart is what chance brings; one that is slower is told."""
    best, alike, seems, slower = [10.0, 10.1, 10.2], [10.0, 10.15, 10.2], [10.4, 10.3, 10.5], [20.0, 20.1, 20.2]
    assert indistinguishable_from_best([seems], best) == [False]
    assert indistinguishable_from_best([seems, *[alike] * 18, slower], best) == [*[True] * 19, False]


def test_two_repeats_of_each_of_some_jobs_tell_apart_what_they_cannot_by_themselves():
    slower, noisy = [1.36, 1.48], [0.75, 0.66]
    jobs = [noisy, [0.78, 0.82], [0.9, 1.09], [0.97, 1.2], slower]
    assert indistinguishable_from_best([slower], [0.523, 0.521]) == [False]
    assert indistinguishable_from_best([noisy], [0.523, 0.521]) == [True], "by itself it may be anything"
    assert indistinguishable_from_best(jobs, [0.523, 0.521]) == [True, False, False, False, False]


def test_of_jobs_that_are_equal_the_best_is_seldom_told_from_another():
    chance = random.Random(0)
    missing = 0
    for _ in range(100):
        jobs = [[chance.lognormvariate(0, 0.01) for _ in range(3)] for _ in range(8)]
        best = min(jobs, key=fmean)
        missing += not all(indistinguishable_from_best([job for job in jobs if job is not best], best))
    assert missing <= 10, "5 in the long run"


def test_what_ran_once_says_nothing_of_the_repeats_beside_it():
    once = [[30.0 + n] for n in range(10)]
    assert indistinguishable_from_best([*once, [10.0]], [10.0]) == [*[False] * 10, True]


def test_few_that_are_as_good_are_named():
    assert also_as_good([]) == ""
    assert also_as_good(["a", "b", "c", "d"], "As fast") == " As fast, as far as these runs tell: a; b; c; 1 more."


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([costing(0, 10.0, 100.0)], (10.0, f"the largest mean power of an epoch{UNKNOWN}")),
        ([costing(0, 10.0, 100.0, peak_w=15.0)], (15.0, PEAK)),
        ([costing(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0)], (20.0, LIMIT)),
        # Of two GPUs each has its limit.
        ([costing(0, 10.0, 300.0, limit_w=20.0, power_limited_devices=2, strategy="ddp", ranks=2)], (40.0, LIMIT)),
        # Four ranks on one CPU have one limit, and one process on two CPUs has two.
        ([costing(0, 10.0, 150.0, limit_w=20.0, strategy="ddp", ranks=4)], (20.0, LIMIT)),
        ([costing(0, 10.0, 300.0, limit_w=20.0, power_limited_devices=2)], (40.0, LIMIT)),
        ([costing(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0, power_limited_devices=None)], (15.0, PEAK)),
        # What draws more than its limit has more in its energy than what is limited.
        ([costing(0, 10.0, 300.0, limit_w=20.0, peak_w=35.0)], (35.0, PEAK)),
        # One without a limit may draw more than those with one.
        (
            [costing(0, 10.0, 100.0, limit_w=20.0), costing(1, 9.0, 270.0, batch=128, peak_w=33.0)],
            (33.0, PEAK),
        ),
        # The device's highest limit, not the highest of those that were asked for, nor a spike above it.
        ([costing(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0, highest_w=25.0)], (25.0, HIGHEST)),
        (
            [costing(0, 10.0, 100.0, peak_w=31.0), costing(1, 9.0, 180.0, batch=128, limit_w=22.0, highest_w=25.0)],
            (25.0, HIGHEST),
        ),
        ([costing(0, 10.0, 300.0, limit_w=20.0, highest_w=25.0, power_limited_devices=2)], (50.0, HIGHEST)),
        ([costing(0, 10.0, 200.0, limit_w=20.0, highest_w=25.0, strategy="ddp", ranks=4)], (25.0, HIGHEST)),
        # What draws more in the mean is of another device.
        (
            [costing(0, 10.0, 100.0, limit_w=20.0, highest_w=25.0), costing(1, 9.0, 270.0, batch=128, peak_w=33.0)],
            (33.0, PEAK),
        ),
    ],
)
def test_max_power_says_what_it_is_read_from(runs, expected):
    assert max_power(of(*runs)) == expected


def test_without_energy_no_power_is_known():
    with pytest.raises(ValueError, match="no energy, and so no power"):
        max_power(of(costing(0, 10.0, peak_w=15.0)))
