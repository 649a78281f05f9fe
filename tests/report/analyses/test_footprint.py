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


EARLIER = replace(emitting(0, 100.0, keys={}), metrics={"total/energy_j": 3.6e6})
PAID = emitting(3, 100.0)
FREE = replace(PAID, number=2, metrics={name: value for name, value in PAID.metrics.items() if "cost" not in name})
CASES = {
    "": [emitting(0, 100.0), emitting(1, 300.0, hours=(200.0, 400.0), seed=1),
         replace(emitting(2, 500.0, batch=128), state="failed"), emitting(3, None, batch=256),
         replace(emitting(4, 900.0, batch=8), reused="earlier/0")],
    # The sweep began without `footprint` keys, one run has not ended, and one has no price.
    "missing": [EARLIER, replace(emitting(1, None), state="running"), FREE, PAID],
    "energy_only": [replace(PAID, metrics={"total/energy_j": 3.6e6})],
    "currencies": [PAID, emitting(1, 100.0, keys={**KEYS, "currency": "USD"}, batch=8)],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_runs_of_a_sweep_are_added_with_their_uncertainties_or_have_a_reason(case):
    assert_golden("footprint", analyze(CASES[case]), case)
    assert analyze([trained(0, 100.0)]) is None, "no intensity and no price"
