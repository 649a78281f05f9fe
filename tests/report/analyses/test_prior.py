"""Predictions by physics: of workloads with known parameters, with priors that help or not, and of power modes.

Power modes are those of simulated boards with known laws.
"""

import itertools
import math
import random
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden import assert_golden
from simulated_boards import BOARDS, measure
from simulated_boards import workload as board_workload
from sweeps import costing, trained

from epochmeter.report.analyses import physics, prediction
from epochmeter.report.analyses.gaussian import Grid
from epochmeter.report.analyses.prediction import predict
from epochmeter.report.analyses.prior import NO_CLOCKS, physical_keys, read_prior, to_grid
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


def prior_of(*sweeps):
    return read_prior(Sweep(Path("earlier"), list(itertools.chain(*sweeps)), {}))


def earlier(*laws):
    return prior_of(*(runs(law, EVERY, first=100 * n, sweep=f"s{n}", host=f"h{n}") for n, law in enumerate(laws)))


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


# Power modes


ORIN, ORIN_NX, ORIN_NANO = BOARDS[:3]
BATCH = 32


def modes_of(board):
    """Return 60 modes of a board by name, among them the highest clocks."""
    every = board.modes(cores=2, cpu=4, gpu=5, memory=3)[::2]
    return {"MAXN": board.highest, **{f"MODE_{number}": clocks for number, clocks in enumerate(every[:59])}}


def mode_runs(board, of, count, *, first=0, seed=0, sweep="now", energy=True, batches=(BATCH,), **more):
    """Return runs in a random sample of the board's modes and batch sizes."""
    modes, noise = modes_of(board), np.random.default_rng(seed)
    places = random.Random(seed).sample([*itertools.product(batches, modes)], count)
    results = []
    for number, (batch, mode) in enumerate(places, first):
        time_s, power_w = measure(board, of, batch, modes[mode], noise)
        run = trained(number, 100.0, steady={"e2e_s": time_s, "energy_j": time_s * power_w if energy else None},
                      typed={"batch": str(batch), "power_limit": mode}, batch=batch, power_limit=mode)  # fmt: skip
        run = replace(run, job={**run.job, "model": {"name": of.name}}, sweep=sweep, host=board.name, board=board.name)
        results.append(replace(run, mode=mode, mode_clocks=modes, **more))
    return results


def mean_errors(result, board, of):
    """Return the mean relative errors of time, power and energy of the predicted modes."""
    errors = []
    for point in result.points:
        mode, batch = modes_of(board)[point.keys["power_limit"]], int(point.keys.get("batch", BATCH))
        time_s, power_w = measure(board, of, batch, mode)
        predicted = point.time_s.value / time_s, point.power_w.value / power_w
        errors.append([*predicted, point.energy_j.value / (time_s * power_w)])
    return np.abs(np.array(errors) - 1).mean(axis=0)


def test_modes_that_were_not_run_are_predicted_from_a_few():
    errors, held = [], []
    for seed, board in itertools.product(range(4), BOARDS):
        of = board_workload(seed)
        result = predict(group_repeats(mode_runs(board, of, 10, seed=seed)))
        assert result.weights == {"physics": 1.0}
        assert len(result.points) == len(modes_of(board)) - 10
        errors.append(mean_errors(result, board, of))
        for point in result.points:
            time_s, power_w = measure(board, of, BATCH, modes_of(board)[point.keys["power_limit"]])
            truth = ((point.time_s, time_s), (point.power_w, power_w), (point.energy_j, time_s * power_w))
            held.append([estimate.contains(value) for estimate, value in truth])
    assert np.mean(errors, axis=0) == pytest.approx([0.0] * 3, abs=0.08)
    assert np.mean(held, axis=0).min() > 0.93


def test_grid_has_all_modes_for_each_batch_size_and_proposed_runs_set_them(composed):
    measured = mode_runs(ORIN_NX, board_workload(1), 12, batches=(8, 32, 128))
    result = predict(group_repeats(measured))
    assert len(result.points) == 3 * len(modes_of(ORIN_NX)) - 12
    assert max(mean_errors(result, ORIN_NX, board_workload(1))) < 0.15
    jobs = [composed(*shlex.split(point.command)[2:]) for point in result.next_runs]
    proposed = {(job.batch, job.power_limit) for job in jobs}
    assert len(proposed) == 3
    assert not proposed & {(run.job["batch"], run.mode) for run in measured}


def test_other_workloads_of_the_board_and_other_boards_improve_the_prediction():
    few = group_repeats(mode_runs(ORIN, board_workload(0), 6, seed=5))
    others = [mode_runs(ORIN, board_workload(n), 40, first=100 * n, sweep=f"s{n}") for n in (1, 2, 3)]
    elsewhere = [
        mode_runs(board, board_workload(0), 40, first=1000 * n, sweep=board.name)
        for n, board in enumerate((ORIN_NX, ORIN_NANO))
    ]
    alone = sum(mean_errors(predict(few), ORIN, board_workload(0)))
    for sweeps in (others, elsewhere):
        prior = prior_of(*sweeps)
        assert [grid.board for grid in prior.grids] == [sweep[0].board for sweep in sweeps]
        assert sum(mean_errors(predict(few, prior), ORIN, board_workload(0))) < alone


def test_modes_beyond_the_largest_grid_are_a_sample(monkeypatch):
    monkeypatch.setattr(prediction, "MOST_GRID", 100)
    measured = mode_runs(ORIN, board_workload(3), 8, batches=(8, 16, 32, 64))
    batches = len({run.keys["batch"] for run in measured})
    result = predict(group_repeats(measured))
    assert 100 - batches < len(result.points) + len(measured) <= 100


@pytest.mark.parametrize("change", [{"mode_clocks": {}, "mode": ""}, {"mode_clocks": {"MAXN": ORIN.highest}}])
def test_modes_without_clocks_or_of_another_boot_are_names(change):
    measured = mode_runs(ORIN, board_workload(0), 6, batches=(16, 32))
    measured[0] = replace(measured[0], **change)
    result = predict(group_repeats(measured))
    assert result.reason == "few"
    prior = prior_of(measured)
    assert (prior.grids, prior.left_out) == ([], {(NO_CLOCKS, ""): 6})


def test_mode_is_selected_by_watts_and_kept_without_a_limit():
    """A value of the key has the clocks of the mode that was set."""
    measured = mode_runs(ORIN, board_workload(0), 10)
    for number, value in enumerate(("15", "null")):
        measured[number] = replace(measured[number], keys={**measured[number].keys, "power_limit": value})
    result = predict(group_repeats(measured))
    assert max(mean_errors(result, ORIN, board_workload(0))) < 0.15
    assert not {point.keys["power_limit"] for point in result.points} & {run.mode for run in measured}


def test_time_falls_and_power_rises_with_each_clock():
    for place, name in enumerate(("cores", "cpu", "gpu", "memory")):
        rows = np.tile([32.0, math.inf, 0.0, 0.0, 0.0, 0.0], (5, 1))
        rows[:, 2 + place] = np.log([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1])
        time, power = physics.mean_logs(physics.DEFAULT.mean, Grid(rows, [], np.zeros((2, 5)), board="any"))
        assert np.all(np.diff(time) <= 0)
        assert name == "memory" or np.all(np.diff(power) > 0)  # a slow memory also stalls the GPU, which draws less
        assert abs(np.diff(time)[0]) > abs(np.diff(time)[-1]), "the time saturates"


def test_highest_clocks_have_the_effect_of_no_clocks():
    rows = np.array([[8.0, 0.5], [64.0, 0.7]])
    logs = np.zeros((2, 2))
    modes = Grid(np.column_stack([rows, np.zeros((2, 4))]), [], logs, board="any")
    expected = physics.mean_logs(physics.DEFAULT.mean, Grid(rows, [], logs))
    assert physics.mean_logs(physics.DEFAULT.mean, modes) == pytest.approx(expected)
