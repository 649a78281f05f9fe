"""Predictions that learn from earlier sweeps: of workloads with known parameters, and of priors that do not help."""

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden import assert_golden
from sweeps import costing

from epochmeter.report.analyses import physics
from epochmeter.report.analyses.gaussian import Grid
from epochmeter.report.analyses.prediction import predict
from epochmeter.report.analyses.prior import physical_keys, read_prior, to_grid
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import costs
from epochmeter.report.runs.run import Sweep

BATCHES, LIMITS = (8, 16, 32, 64, 128, 256), (100, 150, 200, 250, 300)
EVERY = list(itertools.product(BATCHES, LIMITS))


def workload(seed):
    """Return a function from batch size and limit to time and power, of parameters drawn from the default."""
    parameters = np.random.default_rng(seed).multivariate_normal(physics.DEFAULT.mean, physics.DEFAULT.covariance / 4)

    def costs_at(batch, limit):
        grid = Grid(np.array([[batch, limit / 300]]), [], np.zeros((2, 1)))
        time_s, fraction = np.exp(physics.mean_logs(parameters, grid)[:, 0])
        return float(time_s), 300 * float(fraction)

    return costs_at


def runs(law, places, model="resnet50", energy=True, first=0, sweep="now", **more):
    results = []
    for number, (batch, limit) in enumerate(places, first):
        time_s, power_w = law(batch, limit)
        typed = {"batch": str(batch), "power_limit": str(limit)}
        run = costing(number, time_s, time_s * power_w if energy else None, typed=typed, model=model, batch=batch,
                      power_limit=limit)  # fmt: skip
        results.append(replace(run, sweep=sweep, **more))
    return results


def earlier(*laws, **more):
    every = [runs(law, EVERY, first=100 * n, sweep=f"s{n}", host=f"h{n}", **more) for n, law in enumerate(laws)]
    return read_prior(Sweep(Path("earlier"), list(itertools.chain(*every)), {}))


def few_runs(law, seed=1):
    """Return six runs, among them each batch size and limit."""
    drawn = random.Random(seed)
    limits = [*LIMITS, drawn.choice(LIMITS)]
    drawn.shuffle(limits)
    return group_repeats(runs(law, zip(BATCHES, limits, strict=True)))


def median_error(result, law):
    places = [[float(point.keys[key]) for key in ("batch", "power_limit")] for point in result.points]
    return np.median([abs(math.log(point.time_s.value / law(*place)[0]))
                      for point, place in zip(result.points, places, strict=True)])  # fmt: skip


def test_most_probable_parameters_predict_all_configurations():
    grid = to_grid(costs(group_repeats(runs(workload(0), EVERY))))
    assert (len(grid), grid.full_w, grid.workload, grid.limits.max()) == (30, 300.0, "resnet50 on jpeg", 1.0)
    half = np.arange(len(grid)) % 2 == 0
    posterior = physics.fit(physics.DEFAULT, grid[half])(grid[~half])
    assert posterior.means == pytest.approx(grid.logs[:, ~half], abs=0.03)
    errors = (posterior.means - grid.logs[:, ~half]) / posterior.marginals[1][:2]
    assert np.abs(errors).max() < 3


def test_time_increases_as_the_limit_decreases_and_throughput_saturates():
    rows = np.array([[batch, limit] for batch in (1, 10, 100) for limit in (0.3, 0.5, 1.0, math.inf)])
    mean = physics.DEFAULT.mean.copy()
    mean[2] = 50.0  # no padding
    time, power = physics.mean_logs(mean, Grid(rows, [], np.zeros((2, 12)))).reshape(2, 3, 4)
    assert np.all(np.diff(time, axis=1) <= 0)
    assert np.all(np.diff(power, axis=1) >= 0)
    assert np.all(np.diff(time, 2, axis=0) > 0)
    assert np.all(np.diff(time, axis=0) < 0)


def test_same_workload_in_earlier_sweeps_improves_the_prediction():
    """All have a step between two batch sizes that the physics does not have."""

    def stepped(seed):
        law = workload(seed)
        return lambda batch, limit: (law(batch, limit)[0] * (1.5 if batch == 64 else 1.0), law(batch, limit)[1])

    prior = earlier(*map(stepped, (1, 2, 3)))
    alone = predict(few_runs(stepped(4)))
    learned = predict(few_runs(stepped(4)), prior)
    assert alone.weights == {"physics": 1.0}
    assert learned.weights["prior"] > 0.5
    assert median_error(learned, stepped(4)) < median_error(alone, stepped(4))
    assert (len(learned.prior.grids), learned.prior.values["configurations"], learned.prior.left_out) == (3, 90, {})


def test_prior_that_contradicts_the_runs_has_no_weight():
    """The power and the time of earlier sweeps jump between batch sizes, those of the runs do not."""

    def jumping(batch, limit):
        factor = 5.0 if batch in (16, 64, 256) else 1.0
        time_s, power_w = workload(3)(batch, limit)
        return time_s * factor, power_w

    law = workload(4)
    result = predict(few_runs(law), earlier(jumping, jumping, jumping))
    assert result.weights["prior"] < 0.1
    assert median_error(result, law) < 0.1
    assert_golden(
        "prediction", replace(result, points=result.points[:1], next_runs=result.next_runs[:1]), "contradicted"
    )
    assert result.values["prior"]["workloads"] == 3


def test_prior_of_other_keys_is_reported():
    others = [costing(n, 10.0 + n, workers=2**n, typed={"workers": str(2**n), "optimizer.lr": f"{n % 2}"})
              for n in range(6)]  # fmt: skip
    result = predict(group_repeats(others), earlier(workload(0)))
    assert list(result.weights) == ["smooth"]
    assert_golden("prediction", replace(result, points=result.points[:1], next_runs=[]), "other_prior")


def test_records_that_cannot_be_used_have_reasons():
    good, short = runs(workload(0), EVERY), runs(workload(1), EVERY[:3], model="resnet152", first=50)
    failed = runs(workload(0), EVERY[:2], first=70, state="failed")
    timed = runs(workload(2), EVERY[:6], energy=False, host="other", first=80, no_energy="no meter")
    bad = {"9": "it is of schema 9", "10": "it is of schema 9"}
    prior = read_prior(Sweep(Path("s"), [*good, *short, *failed, *timed], bad), {run.name for run in good[:10]})
    assert [(len(grid), len(grid.logs)) for grid in prior.grids] == [(20, 2), (6, 1)]
    assert prior.values["without_power"] == 1
    assert prior.left_out == {("unreadable", "it is of schema 9"): 2, ("failures", "failed"): 2, ("few", "4"): 3}
    assert list(predict(few_runs(workload(7)), replace(prior, grids=prior.grids[1:])).errors) == [
        "time",
        "power",
        "energy",
    ]
    result = predict(few_runs(workload(5)), replace(prior, grids=[]))
    assert_golden("prediction", replace(result, points=result.points[:1], next_runs=[]), "no_prior")


def test_runs_without_a_limit_have_the_power_of_the_workload():
    law, measured = workload(1), few_runs(workload(1))
    free = [replace(run, keys={**run.keys, "power_limit": "null"}, job={**run.job, "power_limit": None})
            for entry in measured for run in entry.runs if run.job["power_limit"] == 300]  # fmt: skip
    others = [run for entry in measured for run in entry.runs if run.job["power_limit"] < 300]
    result = predict(group_repeats([*others, *free]))
    errors = [point.power_w.value / law(float(point.keys["batch"]), 300)[1] - 1 for point in result.points
              if point.keys["power_limit"] == "null"]  # fmt: skip
    assert free
    assert np.abs(errors).max() < 0.1


def test_batch_sizes_and_watts_have_physics():
    for columns in ({"batch": ("8", "16")}, {"power_limit": ("150", "null")}):
        assert physical_keys(columns, has_modes=False) == [*columns]
    modes = {"power_limit": ("MAXN", "MODE_15W"), "workers": ("1", "2"), "batch": ("8", "null")}
    assert physical_keys(modes, has_modes=False) == []
    assert physical_keys(modes, has_modes=True) == ["power_limit"]
