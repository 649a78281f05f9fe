"""Carbon footprint and cost of a sweep: sums, intervals, and runs that are not counted."""

from dataclasses import replace

import pytest
from golden import assert_golden
from sweeps import trained

from epochmeter.report.analyses.footprint import analyze

KEYS = {"intensity": "hours.csv", "price": 0.25, "currency": "EUR", "pue": 1.2}


def emitting(number, co2e_g, cost=0.5, hours=(100.0, 100.0), keys=KEYS, **more):
    """A run with a footprint that is uncertain by 10 %; without one if `co2e_g` is None."""
    total = {"energy_j": 3.6e6, "energy_uncertainty_j": 3.6e5, "co2e_g": co2e_g, "cost": cost,
             "co2e_uncertainty_g": (co2e_g or 0) / 10, "cost_uncertainty": 0.05,
             "intensity_g_per_kwh": sum(hours) / 2, "intensity_min_g_per_kwh": hours[0],
             "intensity_max_g_per_kwh": hours[1]}  # fmt: skip
    total = {} if co2e_g is None else total
    steady = {} if co2e_g is None else {"co2e_g": co2e_g / 6, "cost": cost / 6}
    return trained(number, 100.0, total=total, steady=steady, footprint=keys, **more)


def test_runs_of_a_sweep_are_added_with_their_uncertainties():
    runs = [emitting(0, 100.0), emitting(1, 300.0, hours=(200.0, 400.0), seed=1), emitting(2, 500.0, batch=128)]
    runs[2] = replace(runs[2], state="failed")
    failed = emitting(3, None, batch=256)
    reused = replace(emitting(4, 900.0, batch=8), reused="earlier/0")
    assert_golden("footprint", analyze([*runs, failed, reused]))


def test_each_run_of_the_sweep_is_counted_or_has_a_reason():
    """The sweep began without `footprint` keys, one run has not ended, and one has no price."""
    earlier = replace(emitting(0, 100.0, keys={}), metrics={"total/energy_j": 3.6e6})
    running, paid = replace(emitting(1, None), state="unfinished"), emitting(3, 100.0)
    free = replace(paid, number=2, metrics={name: value for name, value in paid.metrics.items() if "cost" not in name})
    result = analyze([earlier, running, free, paid])
    assert (result.numbers, result.missing) == ([3], {"co2e_g": [0], "unfinished": [1], "cost": [2]})
    result = analyze([replace(paid, metrics={"total/energy_j": 3.6e6})])
    assert (result.numbers, result.co2e_g, result.missing) == ([], None, {"co2e_g": [3]})
    assert analyze([trained(0, 100.0)]) is None, "no intensity and no price"
    result = analyze([paid, emitting(1, 100.0, keys={**KEYS, "currency": "USD"}, batch=8)])
    assert (result.cost, result.currencies, result.co2e_g.value) == (None, ["EUR", "USD"], pytest.approx(200.0))
