"""Predictions of power modes that were not run, on simulated boards with known laws."""

import itertools
import math
import random
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_boards import BOARDS, measure, workload
from sweeps import trained

from epochmeter.report.analyses import physics, prediction
from epochmeter.report.analyses.gaussian import Grid
from epochmeter.report.analyses.prediction import predict
from epochmeter.report.analyses.prior import NO_CLOCKS, read_prior
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.run import Sweep

ORIN, ORIN_NX, ORIN_NANO = BOARDS[:3]
BATCH = 32


def modes_of(board):
    """Return 60 modes of a board by name, among them the highest clocks."""
    every = board.modes(cores=2, cpu=4, gpu=5, memory=3)[::2]
    return {"MAXN": board.highest, **{f"MODE_{number}": clocks for number, clocks in enumerate(every[:59])}}


def runs(board, of, count, *, first=0, seed=0, sweep="now", energy=True, batches=(BATCH,), **more):
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


def prior_of(*sweeps):
    return read_prior(Sweep(Path("earlier"), list(itertools.chain(*sweeps)), {}))


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
        of = workload(seed)
        result = predict(group_repeats(runs(board, of, 10, seed=seed)))
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
    measured = runs(ORIN_NX, workload(1), 12, batches=(8, 32, 128))
    result = predict(group_repeats(measured))
    assert len(result.points) == 3 * len(modes_of(ORIN_NX)) - 12
    assert max(mean_errors(result, ORIN_NX, workload(1))) < 0.15
    jobs = [composed(*shlex.split(point.command)[2:]) for point in result.next_runs]
    proposed = {(job.batch, job.power_limit) for job in jobs}
    assert len(proposed) == 3
    assert not proposed & {(run.job["batch"], run.mode) for run in measured}


def test_other_workloads_of_the_board_and_other_boards_improve_the_prediction():
    few = group_repeats(runs(ORIN, workload(0), 6, seed=5))
    others = [runs(ORIN, workload(n), 40, first=100 * n, sweep=f"s{n}") for n in (1, 2, 3)]
    elsewhere = [
        runs(board, workload(0), 40, first=1000 * n, sweep=board.name) for n, board in enumerate((ORIN_NX, ORIN_NANO))
    ]
    alone = sum(mean_errors(predict(few), ORIN, workload(0)))
    for sweeps in (others, elsewhere):
        prior = prior_of(*sweeps)
        assert [grid.board for grid in prior.grids] == [sweep[0].board for sweep in sweeps]
        assert sum(mean_errors(predict(few, prior), ORIN, workload(0))) < alone


def test_modes_beyond_the_largest_grid_are_a_sample(monkeypatch):
    monkeypatch.setattr(prediction, "MOST_GRID", 100)
    measured = runs(ORIN, workload(3), 8, batches=(8, 16, 32, 64))
    batches = len({run.keys["batch"] for run in measured})
    result = predict(group_repeats(measured))
    assert 100 - batches < len(result.points) + len(measured) <= 100


@pytest.mark.parametrize("change", [{"mode_clocks": {}, "mode": ""}, {"mode_clocks": {"MAXN": ORIN.highest}}])
def test_modes_without_clocks_or_of_another_boot_are_names(change):
    measured = runs(ORIN, workload(0), 6, batches=(16, 32))
    measured[0] = replace(measured[0], **change)
    result = predict(group_repeats(measured))
    assert result.reason == "few"
    prior = prior_of(measured)
    assert (prior.grids, prior.left_out) == ([], {(NO_CLOCKS, ""): 6})


def test_mode_is_selected_by_watts_and_kept_without_a_limit():
    """A value of the key has the clocks of the mode that was set."""
    measured = runs(ORIN, workload(0), 10)
    for number, value in enumerate(("15", "null")):
        measured[number] = replace(measured[number], keys={**measured[number].keys, "power_limit": value})
    result = predict(group_repeats(measured))
    assert max(mean_errors(result, ORIN, workload(0))) < 0.15
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
