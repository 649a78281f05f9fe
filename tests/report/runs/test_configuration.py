"""Configurations: which runs are repeats of one, their titles, and their time and energy; absent is absent."""

from dataclasses import replace
from math import sqrt

import pytest
from sweeps import costing, job, reaching, row, trained

from epochmeter.report.runs.configuration import group_repeats, groups
from epochmeter.report.runs.costs import comparable, costs, max_power, ranked_costs
from epochmeter.report.runs.data_source import by_job, condition


def titles(*runs):
    return {entry.title: entry.numbers for entry in group_repeats(runs)}


def on_host(number, host, batch=64):
    return replace(trained(number, 100.0, batch=batch), host=host)


def test_repeats_on_one_host_are_one_configuration_with_a_title_of_its_own():
    assert titles(*(trained(n, 100.0, repeat=n, batch=8 + n // 2) for n in range(4))) == {
        "batch 8": [0, 1],
        "batch 9": [2, 3],
    }
    evaluated = [trained(n, 100.0, evaluation={"every": n}) for n in range(2)]
    assert titles(*evaluated) == {"resnet152, batch 64 (run 0)": [0], "resnet152, batch 64 (run 1)": [1]}
    models = ["resnet50", "resnet152"]
    runs = [trained(n, 9.0, model=name, typed={"model.name": name}) for n, name in enumerate(models)]
    assert [*titles(*runs)] == models, "without the override of its name"
    script = replace(trained(2, 9.0), job={"model": {"name": "script"}, "optimizer": {"name": "script"}})
    assert [*titles(*(trained(n, 9.0, batch=n, optimizer={"name": "sgd"}) for n in (8, 16)), script)] == [
        "resnet152, batch 8",
        "resnet152, batch 16",
        "script",
    ]
    fans = [replace(script, number=n, job={**script.job, "fan": fan}) for n, fan in enumerate(("keep", "max"))]
    assert [*titles(*fans)] == ["fan keep", "fan max"]
    recipes = [replace(trained(n, 9.0, optimizer={"name": name}), number=n) for n, name in enumerate(("sgd", "adam"))]
    assert [*titles(*recipes, script)][-1] == "script", "its optimizer is not known"
    hosts = titles(*(on_host(n, host) for n, host in enumerate(["nano", "orin", "nano"])))
    assert {title.rpartition(", ")[2]: numbers for title, numbers in hosts.items()} == {"nano": [0, 2], "orin": [1]}
    on = [on_host(0, "nano", 8), on_host(1, "h200", 8), on_host(2, "h200", 16)]
    assert [[entry.numbers for entry in group] for group in groups(group_repeats(on), ["batch"])] == [[[0]], [[1], [2]]]


@pytest.mark.parametrize("key", ["roofline", "footprint", "tracking", "sweep", "profiler"])
def test_runs_that_differ_in_a_key_without_effect_on_the_measurement_are_repeats(key):
    runs = [trained(number, 100.0, **{key: {"name": name}}) for number, name in enumerate(("one", "another"))]
    assert [entry.numbers for entry in group_repeats(runs)] == [[0, 1]]


def test_rehearsals_that_differ_in_settings_that_were_not_applied_are_repeats():
    settings = [{"power_limit": 100, "batch": 8}, {"power_limit": 130, "batch": 8}, {"clocks": "locked", "batch": 16}]
    runs = [trained(n, 100.0, **keys) for n, keys in enumerate(settings)]
    assert len(titles(*runs)) == 3
    rehearsals = [replace(run, rehearsal=["not applied"]) for run in runs]
    assert titles(*rehearsals) == {"batch 8": [0, 1], "batch 16": [2]}


def test_runs_of_one_configuration_and_host_are_together_by_their_data_source():
    for name in ("synthetic", "cached", "storage"):
        assert condition(job(name)) == name
        for cache in ("keep", "cold"):
            assert name == "synthetic" or condition(job(name, cache=cache)) is None, "a plain run"
    runs = [row(n, data_source, 1.0 + n, host="h1") for n, data_source in enumerate(("cached", "storage", "cached"))]
    others = row(3, "storage", 1.0, job_keys={"batch": 8}), row(4, "cached", 1.0, job_keys={"cache": "keep"})
    assert by_job([*runs, *others, row(5, "synthetic", 1.0, host="h2")]) == [
        {"cached": [runs[0], runs[2]], "storage": [runs[1]]}
    ]


def limited(number, time_s, energy_j=None, *, peak_w=None, limit_w=None, highest_w=None, devices=1, **keys):
    """A run whose power was limited for this number of devices."""
    total = {"power_limit_w": limit_w, "power_limit_max_w": highest_w}
    run = costing(number, time_s, energy_j, steady={"power_peak_w": peak_w}, total=total, **keys)
    return replace(run, power_limited_devices=devices if limit_w else None)


def of(*runs):
    return costs(group_repeats(list(runs)))


def test_costs_have_one_value_per_run_and_no_energy_if_a_run_has_none():
    (cost,) = of(costing(0, 10.0, 100.0), costing(1, 12.0, 110.0, repeat=1))
    assert (cost.times_s, cost.joules, cost.covers) == ([10.0, 12.0], [100.0, 110.0], "GPUs used")
    assert (cost.time_s, cost.energy_j, cost.power_w) == pytest.approx(
        (sqrt(10 * 12), sqrt(100 * 110), sqrt(100 * 110 / (10 * 12)))
    )
    for time_s, energy_j in ((None, None), (0.0, -1.0)):
        (cost,) = of(costing(0, time_s), costing(1, 10.0, batch=128))
        assert cost.title == "batch 128"
        (cost,) = of(costing(0, 10.0, 100.0), replace(costing(1, 10.0, energy_j, repeat=1), energy_covers="GPUs used"))
        assert (cost.joules, cost.energy_j, cost.power_w, cost.covers) == ([], None, None, None)


def test_energies_are_grouped_by_scope_and_repeats_with_several_scopes_have_none():
    module = replace(costing(2, 10.0, 50.0, batch=256), energy_covers="module")
    found = of(module, costing(0, 10.0, 100.0), costing(1, 10.0, 100.0, batch=128), costing(3, 9.0, batch=8))
    grouped = {covers: [cost.title for cost in group] for covers, group in comparable(found).items()}
    assert [*grouped.items()] == [("GPUs used", ["batch 64", "batch 128"]), ("module", ["batch 256"])]
    assert of(costing(0, 10.0, 100.0, batch=256), replace(module, job={**module.job, "repeat": 1}))[0].covers is None


def test_configurations_with_one_target_are_ranked_by_time_and_energy_to_it():
    target = (0.9, None, False)
    runs = [reaching(0, 50.0, 900.0), reaching(1, 60.0, 600.0, batch=128), reaching(2, 40.0, batch=256, repeat=0),
            reaching(3, batch=256, repeat=1)]  # fmt: skip
    found = ranked_costs(group_repeats(runs))
    assert [(cost.title, cost.time_s, cost.energy_j, cost.power_w, cost.target) for cost in found] == [
        ("batch 64", 50.0, 900.0, 18.0, target),
        ("batch 128", 60.0, 600.0, 10.0, target),
    ], "not all runs of batch 256 reached it"
    for first, second in (
        (reaching(0), reaching(1, batch=128)),
        (reaching(0, 50.0), reaching(1, 60.0, batch=128, target_accuracy=0.8)),
        (reaching(0, 50.0), trained(1, 100.0, batch=128)),
    ):
        assert {cost.target for cost in ranked_costs(group_repeats([first, second]))} == {None}, "no common target"


def test_max_power_is_the_highest_limit_or_else_the_largest_power_measured():
    for runs, expected in (
        ([costing(0, 10.0, 100.0)], (10.0, False)),
        ([limited(0, 10.0, 100.0, peak_w=15.0)], (15.0, False)),
        ([limited(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0)], (20.0, True)),
        # Of two GPUs each has its limit; four ranks on one CPU have one.
        ([limited(0, 10.0, 300.0, limit_w=20.0, devices=2, strategy="ddp", ranks=2)], (40.0, True)),
        ([limited(0, 10.0, 150.0, limit_w=20.0, strategy="ddp", ranks=4)], (20.0, True)),
        ([limited(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0, devices=None)], (15.0, False)),
        # More energy is measured than that of the limited devices.
        ([limited(0, 10.0, 300.0, limit_w=20.0, peak_w=35.0)], (35.0, False)),
        # A run without a limit may draw more than the highest limit of another device.
        (
            [limited(0, 10.0, 100.0, limit_w=20.0, highest_w=25.0), limited(1, 9.0, 270.0, batch=128, peak_w=33.0)],
            (33.0, False),
        ),
        # The device's highest limit, neither the highest applied limit nor a peak above it.
        ([limited(0, 10.0, 100.0, peak_w=15.0, limit_w=20.0, highest_w=25.0)], (25.0, True)),
        (
            [limited(0, 10.0, 100.0, peak_w=31.0), limited(1, 9.0, 180.0, batch=128, limit_w=22.0, highest_w=25.0)],
            (25.0, True),
        ),
        ([limited(0, 10.0, 300.0, limit_w=20.0, highest_w=25.0, devices=2)], (50.0, True)),
    ):
        assert max_power(of(*runs)) == expected
    with pytest.raises(ValueError, match="no energy, and so no power"):
        max_power(of(limited(0, 10.0, peak_w=15.0)))
