"""Time and energy per configuration: per epoch or to the target; absent is absent."""

from dataclasses import replace
from math import inf, nan

import pytest
from sweeps import costing, reaching, trained

from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import comparable, costs, max_power, ranked_costs


def limited(number, time_s, energy_j=None, *, peak_w=None, limit_w=None, highest_w=None, devices=1, **keys):
    """A run whose power was limited for this number of devices."""
    total = {"power_limit_w": limit_w, "power_limit_max_w": highest_w}
    run = costing(number, time_s, energy_j, steady={"power_peak_w": peak_w}, total=total, **keys)
    return replace(run, power_limited_devices=devices if limit_w else None)


def of(*runs):
    return costs(group_repeats(list(runs)))


def test_repeats_are_one_cost_of_several_values():
    (cost,) = of(costing(0, 10.0, 100.0), costing(1, 12.0, 110.0, repeat=1))
    assert (cost.times_s, cost.joules, cost.covers) == ([10.0, 12.0], [100.0, 110.0], "GPUs used")
    assert (cost.time_s, cost.energy_j, cost.power_w) == pytest.approx((11.0, 105.0, 105 / 11))


@pytest.mark.parametrize(("time_s", "energy_j"), [(None, None), (nan, nan), (inf, inf), (0.0, -1.0)])
def test_configuration_without_a_time_has_no_cost_and_one_with_a_run_without_energy_no_energy(time_s, energy_j):
    (cost,) = of(costing(0, time_s), costing(1, 10.0, batch=128))
    assert cost.title == "batch 128"
    (cost,) = of(costing(0, 10.0, 100.0), replace(costing(1, 10.0, energy_j, repeat=1), energy_covers="GPUs used"))
    assert (cost.joules, cost.energy_j, cost.power_w, cost.covers) == ([], None, None, None)


def test_energies_of_different_scope_are_grouped_and_repeats_with_such_have_none():
    module = replace(costing(2, 10.0, 50.0, batch=256), energy_covers="module")
    found = of(module, costing(0, 10.0, 100.0), costing(1, 10.0, 100.0, batch=128), costing(3, 9.0, batch=8))
    assert {covers: [cost.title for cost in group] for covers, group in comparable(found).items()} == {
        "GPUs used": ["batch 64", "batch 128"],
        "module": ["batch 256"],
    }
    assert of(costing(0, 10.0, 100.0, batch=256), replace(module, job={**module.job, "repeat": 1}))[0].covers is None


def test_configurations_with_one_target_are_ranked_by_time_and_energy_to_it():
    runs = [reaching(0, 50.0, 900.0), reaching(1, 60.0, 600.0, batch=128), reaching(2, 40.0, batch=256, repeat=0),
            reaching(3, batch=256, repeat=1)]  # fmt: skip
    found = ranked_costs(group_repeats(runs))
    assert [(cost.title, cost.time_s, cost.energy_j, cost.power_w, cost.target) for cost in found] == [
        ("batch 64", 50.0, 900.0, 18.0, (0.9, None, False)),
        ("batch 128", 60.0, 600.0, 10.0, (0.9, None, False)),
    ], "not all runs of batch 256 reached it"


@pytest.mark.parametrize(
    "runs",
    [
        [reaching(0), reaching(1, batch=128)],
        [reaching(0, 50.0), reaching(1, 60.0, batch=128, target_accuracy=0.8)],
        [reaching(0, 50.0), trained(1, 100.0, batch=128)],
    ],
)
def test_configurations_without_a_common_target_are_ranked_by_epoch(runs):
    assert {cost.target for cost in ranked_costs(group_repeats(runs))} == {None}


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([costing(0, 10.0, 100.0)], (10.0, "mean")),
        ([limited(0, 10.0, 100.0, peak_w=15.0)], (15.0, "sampled")),
        ([limited(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0)], (20.0, "applied")),
        # Of two GPUs each has its limit.
        ([limited(0, 10.0, 300.0, limit_w=20.0, devices=2, strategy="ddp", ranks=2)], (40.0, "applied")),
        # Four ranks on one CPU have one limit.
        ([limited(0, 10.0, 150.0, limit_w=20.0, strategy="ddp", ranks=4)], (20.0, "applied")),
        ([limited(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0, devices=None)], (15.0, "sampled")),
        # What draws more than its limit has more in its energy than what is limited.
        ([limited(0, 10.0, 300.0, limit_w=20.0, peak_w=35.0)], (35.0, "sampled")),
        # One without a limit may draw more than the highest limit of another device.
        (
            [limited(0, 10.0, 100.0, limit_w=20.0, highest_w=25.0), limited(1, 9.0, 270.0, batch=128, peak_w=33.0)],
            (33.0, "sampled"),
        ),
        # The device's highest limit, not the highest of those that were asked for, nor a spike above it.
        ([limited(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0, highest_w=25.0)], (25.0, "highest")),
        (
            [limited(0, 10.0, 100.0, peak_w=31.0), limited(1, 9.0, 180.0, batch=128, limit_w=22.0, highest_w=25.0)],
            (25.0, "highest"),
        ),
        ([limited(0, 10.0, 300.0, limit_w=20.0, highest_w=25.0, devices=2)], (50.0, "highest")),
    ],
)
def test_max_power_has_its_source(runs, expected):
    assert max_power(of(*runs)) == expected


def test_without_energy_no_power_is_known():
    with pytest.raises(ValueError, match="no energy, and so no power"):
        max_power(of(limited(0, 10.0, peak_w=15.0)))
