"""Predictions of configurations that were not run: of known laws, and refused for too little data."""

import csv
import itertools
import json
import math
import random
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from golden import assert_golden
from sweeps import DATA_SOURCES, costing, trained

from epochmeter.report.analyses import design, gaussian, physics, prediction
from epochmeter.report.analyses.prediction import NoPrediction, Predicted, Prediction, predict
from epochmeter.report.analyses.prior import to_grid
from epochmeter.report.runs.configuration import NoEnergy, group_repeats
from epochmeter.report.runs.costs import costs
from epochmeter.report.statistics import Estimate

BATCHES, WORKERS, LIMITS = (8, 16, 32, 64), (0, 1, 2, 4), (100, 150, 200)


def time_of(batch, workers, limit):
    """A law that is smooth on the scales of the keys."""
    return (20 + 400 / batch) * (1 + 0.5 / (workers + 1)) * (250 / limit) ** 0.3


def run(number, batch, workers, limit, energy=True, law=time_of, **more):
    time_s = law(batch, workers, limit)
    typed = {"batch": str(batch), "workers": str(workers), "power_limit": str(limit)}
    return costing(number, time_s, 0.8 * limit * time_s if energy else None, typed=typed, batch=batch, workers=workers,
                   power_limit=limit, **more)  # fmt: skip


def grid(count, **more):
    """Return a number of configurations of the grid, drawn with a seed."""
    every = list(itertools.product(BATCHES, WORKERS, LIMITS))
    return group_repeats([run(number, *at, **more) for number, at in enumerate(random.Random(2).sample(every, count))])


def place(point):
    return [float(point.keys[key]) for key in ("batch", "workers", "power_limit")]


@pytest.fixture(scope="module")
def result():
    return predict(grid(20))


def test_time_power_and_energy_of_all_other_configurations_of_the_grid_are_predicted(result):
    assert len(result.points) == 4 * 4 * 3 - 20
    errors = [abs(point.time_s.value / time_of(*place(point)) - 1) for point in result.points]
    assert np.median(errors) < 0.01
    assert max(errors) < 0.1
    times_s = [point.time_s.value for point in result.points]
    assert times_s == sorted(times_s)
    assert all(abs(point.power_w.value / (0.8 * place(point)[2]) - 1) < 0.03 for point in result.points)
    for point in result.points:
        assert point.energy_j.value == pytest.approx(point.time_s.value * point.power_w.value)
        assert point.time_s.low < point.time_s.value < point.time_s.high
    assert result.least_energy.energy_j.value == min(point.energy_j.value for point in result.points)
    held = [point.time_s.contains(time_of(*place(point))) for point in result.points]
    assert sum(held) >= 0.9 * len(held)
    error = result.errors["time"]
    assert error.configurations == 20
    assert error.median < 0.05 < error.guess
    assert error.within >= 19


def test_configuration_that_failed_is_not_predicted(result):
    failed = run(99, *map(int, place(result.points[0])))
    with_other_key = replace(failed, job={**failed.job, "precision": "bf16"})
    kept, others = (predict(grid(20), excluded=group_repeats([one])).points for one in (with_other_key, failed))
    assert [point.title for point in kept] == [point.title for point in result.points]
    assert [point.title for point in others] == [point.title for point in result.points[1:]]


def test_next_runs_are_uncertain_may_be_on_the_front_and_do_not_repeat_each_other():
    """Of three unknown configurations, the second certainly is not on the front, and the third hardly known."""
    means = np.array([[0.0, 3.0, 0.0, -1.0], [0.0, 3.0, 0.5, 1.2]])
    deviations = np.array([0.3, 0.3, 0.01, 0.01] * 2)
    posterior = gaussian.Posterior(means, np.diag(deviations**2))
    assert design.choose_runs(posterior, np.array([[0.1], [0.1]]), 2) == [0, 1]
    assert sorted(design.choose_runs(posterior.first(1), np.array([[0.1]]), 9)) == [0, 1, 2, 3]
    # Two perfectly correlated configurations need one run, even if each alone is the most uncertain.
    covariance = np.kron(np.eye(2), [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    posterior = gaussian.Posterior(np.zeros((2, 3)), covariance)
    assert sorted(design.choose_runs(posterior, np.zeros((2, 1)), 2))[1] == 2


@pytest.mark.parametrize("correlation", [-0.95, 0.0, 0.95])
def test_energy_has_the_interval_of_its_own_errors(correlation):
    """If the errors of time and power cancel out, the energy is more certain than either; if they agree, less."""
    covariance = 0.01 * np.array([[1.0, correlation], [correlation, 1.0]])
    errors = np.random.default_rng(0).multivariate_normal([0.0, 0.0], covariance, 400).T
    logs = np.linspace(0, 3, 400)

    def model(runs):
        def predict(target):
            means = target.logs + errors[:, np.searchsorted(logs, target.logs[0])]
            return gaussian.Posterior(means, np.kron(covariance, np.eye(len(target))))

        return predict

    grid = gaussian.Grid(np.ones((400, 2)), [], np.stack([logs, logs]))
    weights, estimated = gaussian.cross_validate({"model": model}, grid)
    _, deviations = gaussian.fit_weighted({"model": model}, weights, grid)(grid).marginals
    halves = [error.half_widths(row)[0] for error, row in zip(estimated, deviations, strict=True)]
    assert halves == pytest.approx([0.196, 0.196, 0.196 * math.sqrt(2 + 2 * correlation)], rel=0.1)
    assert [error.within / 400 for error in estimated] == pytest.approx([0.95] * 3, abs=0.02)


TRACES = Path(__file__).parents[2] / "data" / "zeus"


def trace_runs(file):
    """Return the runs of each workload in a file of published times and powers."""
    workloads, lines = {}, [*csv.DictReader(file.read_text().splitlines())]
    total = {"power_limit_max_w": max(float(line["power_limit"]) for line in lines)}
    for number, line in enumerate(lines):
        time_s = float(line["time_per_epoch"])
        steady = {"e2e_s": time_s, "energy_j": time_s * float(line["average_power"])}
        keys = {"batch": int(line["batch_size"]), "power_limit": int(line["power_limit"])}
        typed = {key: str(value) for key, value in keys.items()}
        run = trained(number, 100.0, steady=steady, total=total, typed=typed, **keys)
        workload = line["network"], line["dataset"]
        workloads.setdefault(workload, []).append(replace(run, power_limited_devices=1))
    return workloads


def test_intervals_of_published_traces_hold_as_often_as_stated():
    """95 % of the times, powers and energies of other configurations are within the intervals from six runs.

    The share of a draw of six runs for each grid varies by 0.016 (standard deviation).
    """
    models, held = {"physics": partial(physics.fit, physics.DEFAULT)}, []
    every = [runs for file in sorted(TRACES.glob("*.csv")) for runs in trace_runs(file).values()]
    grids = [to_grid(costs(group_repeats(runs))) for runs in every]
    assert len(grids) == 18, "six workloads on each of three GPUs"
    for grid in grids:
        order = np.random.default_rng(0).permutation(len(grid))
        sample, others = grid[order[:6]], grid[order[6:]]
        weights, errors = gaussian.cross_validate(models, sample)
        means, deviations = gaussian.fit_weighted(models, weights, sample)(others).marginals
        halves = [error.half_widths(row) for error, row in zip(errors, deviations, strict=True)]
        held.append(np.abs(means - gaussian.with_energy(others.logs)) <= halves)
    shares = np.concatenate(held, axis=1).mean(axis=1)
    assert shares == pytest.approx([0.95] * 3, abs=0.03)


def test_interval_without_physics_is_not_much_narrower_than_the_errors(monkeypatch):
    """By hand: Student's quantile of 7 degrees of freedom, 2.3646, times the error of 0.1, and half of it."""
    errors = 0.1 * np.array([1.0, -1.0] * 4)
    places = np.arange(8.0)

    def model(runs, starts=3):
        def predict(target):
            means = target.logs + errors[np.searchsorted(places, target.logs[0])]
            return gaussian.Posterior(means, 0.01 * np.eye(len(target)))

        return predict

    monkeypatch.setattr(gaussian, "smooth", model)
    grid = gaussian.Grid(np.ones((8, 3)), [2], places[None])
    for name, least in ((gaussian.SMOOTH, 0.11823), ("physics", 0.0)):
        _, (error,) = gaussian.cross_validate({name: model}, grid)
        assert error.least_width == pytest.approx(least, rel=1e-3)
        halves = error.half_widths(np.array([0.0, 0.1, 1.0]))
        assert halves == pytest.approx([least, 0.1 * error.width, error.width], rel=1e-3)


def test_names_are_encoded_by_value_and_numbers_by_size():
    settings = [("1", "0", "-1", "a", "x"), ("10", "1", "0", "b", "y"), ("100", "3", "1", "c", "y")]
    expected = [[0, 0, 0, 1, 0, 0, 0], [0.5, 0.5, 0.5, 0, 1, 0, 1], [1, 1, 1, 0, 0, 1, 1]]
    assert gaussian.encode(settings) == pytest.approx(np.array(expected))


def test_key_set_by_an_overridden_key_is_not_part_of_the_grid():
    """The sources of data set keys that were not overridden."""
    every = itertools.product(("cached", "storage"), (8, 16, 32, 64, 128))
    runs = [costing(n, (2 if source == "storage" else 1) * (20 + 400 / batch), batch=batch,
                    typed={"data_source": source, "batch": str(batch)}, **DATA_SOURCES[source])
            for n, (source, batch) in enumerate(every)]  # fmt: skip
    complete = predict(group_repeats(runs))
    assert (complete.reason, complete.keys) == ("complete", ["data_source", "batch"])
    (point,) = predict(group_repeats(runs[:-1])).points
    assert point.title == "data_source storage, batch 128"


def test_dependent_keys_stay_in_pairs():
    """Three storages have one folder each, and one of them has two: none is suggested with another's folder."""
    places = [("nvme", "/", 1), ("ssd", "/ssd", 1.5), ("ssd", "/ssd2", 1.5), ("hdd", "/hdd", 3)]
    every = list(itertools.product(places, (8, 16, 32)))
    runs = [costing(n, slow * (20 + 400 / batch), batch=batch, storage={"name": name, "root": root},
                    typed={"storage": name, "storage.root": root, "batch": str(batch)})
            for n, ((name, root, slow), batch) in enumerate(every) if n != 5]  # fmt: skip
    (point,) = predict(group_repeats(runs)).points
    assert point.keys == {"storage.root": "/ssd", "batch": "32"}
    assert {"storage=ssd", "storage.root=/ssd", "batch=32"} <= set(shlex.split(point.command))
    (point,) = predict(group_repeats([each for each in runs if each.keys["storage.root"] != "/ssd2"])).points
    assert point.title == "storage ssd, batch 32"
    assert "storage.root=/ssd" in shlex.split(point.command)


def test_noise_is_not_predicted():
    drawn = random.Random(0)
    assert predict(grid(16, energy=False, law=lambda *at: drawn.uniform(1, 10))).reason == "inaccurate"


def test_configuration_without_time_or_power_is_not_fitted():
    for value in (None, math.nan):
        bad = run(9, 8, 0, 200, law=lambda *at: value, energy=False)  # noqa: B023 (called here)
        assert predict([*grid(5), *group_repeats([bad])]).count == 5
    first, *others = grid(12)
    broken = [replace(row, metrics={**row.metrics, "steady/energy_j": math.nan}) for row in first.runs]
    assert predict([*group_repeats(broken), *others]).no_power == NoEnergy(1, 12)
    assert predict(grid(8, law=lambda *at: 10.0)).points[0].time_s.value == pytest.approx(10.0)


def test_without_energy_only_time_is_predicted(monkeypatch):
    monkeypatch.setattr(prediction, "MAX_CONFIGURATIONS", 12)
    result = predict(grid(20, energy=False))
    assert (list(result.errors), result.points[0].power_w, result.least_energy) == (["time"], None, None)
    assert result.no_power == NoEnergy(20, 20, "no meter here")
    assert (result.errors["time"].configurations, result.measured, len(result.points)) == (12, 20, 28)


def test_held_out_configurations_are_predicted_from_the_others(monkeypatch):
    """With folds too, no model is fitted to configurations of its held-out fold."""
    monkeypatch.setattr(gaussian, "MAX_LEAVE_ONE_OUT", 10)
    rows = np.random.default_rng(0).random((20, 3))
    grid = gaussian.Grid(rows, [], rows.sum(axis=1, keepdims=True).T)

    def model(runs):
        def predict(held_out):
            assert (len(runs), len(held_out)) == (18, 2)
            assert not set(runs.batches) & set(held_out.batches)
            return gaussian.Posterior(held_out.logs + 0.1, 0.01 * np.eye(2))

        return predict

    weights, (error,) = gaussian.cross_validate({"model": model}, grid)
    assert (weights, error.configurations) == ({"model": 1.0}, 20)
    assert error.median == pytest.approx(math.expm1(0.1))


def test_width_of_intervals_is_calibrated_by_the_errors():
    """Of a process whose standard deviations are wrong by a factor, 95 % of new errors are within the interval."""
    chance = np.random.default_rng(0)
    errors = chance.normal(0, 3.0, (2000, 12))
    widths = np.array([gaussian.calibrated_width(each, np.ones(12)) for each in errors])
    assert 0.94 <= np.mean(np.abs(chance.normal(0, 3.0, 2000)) <= widths) <= 0.97
    few, many = np.full(8, 0.1), np.array([0.01] * 94 + [1.0] * 6)
    assert 0.2 < gaussian.calibrated_width(few, np.ones(8)) < 0.3
    assert 1.4 < gaussian.calibrated_width(few, np.ones(8), 8.0) < 1.6
    assert np.mean(many <= gaussian.calibrated_width(many, np.ones(100))) >= 0.95


ERROR = gaussian.Error(0.3, 0.9, 0.35, 15, 16, 2.2, 0.0, is_useful=False)
POINTS = [Predicted(f"batch {n}", {"batch": f"{n}"}, Estimate(n, 0.9 * n, 1.2 * n), Estimate(100.0, 95.0, 105.0),
                    Estimate(100.0 * n, 94.0 * n, 106.0 * n), f"python src/train.py batch={n}")
          for n in range(8, 20)]  # fmt: skip
WITHOUT_POWER = [replace(point, power_w=None, energy_j=None) for point in POINTS[:5]]
TEXTS = {
    "": Prediction(POINTS, {"time": ERROR, "power": ERROR, "energy": ERROR}, POINTS[:3], 20),
    "no_power": Prediction(WITHOUT_POWER, {"time": ERROR}, POINTS[:1], 9, no_power=NoEnergy(9, 9, "no meter.")),
    "poor_power": Prediction(WITHOUT_POWER, {"time": ERROR}, POINTS[:1], 16, poor_power=ERROR),
    "other_keys": NoPrediction("other_keys", ["batch"]),
    "inaccurate": NoPrediction("inaccurate", error=ERROR),
    "packages": NoPrediction("packages", ["batch"]),
}
# A sampled learning rate identifies each configuration without determining its other keys.
SAMPLED = [{"workers": str(n % 4), "optimizer": f"o{n % 5}", "optimizer.lr": f"0.0{n + 1}"} for n in range(7)]
IMPOSSIBLE = {
    "none": [],
    "few": grid(5),
    "few_sampled": group_repeats([replace(run(n, 8, n, 100), keys=keys) for n, keys in enumerate(SAMPLED)]),
    "no_keys": [*(group_repeats([trained(n, 100.0)])[0] for n in range(8))],
    "complete": group_repeats([trained(n, 100.0, workers=n) for n in range(8)]),
    "complete_batches": group_repeats([run(n, 8 * (1 + n), 1, 100) for n in range(8)]),
    "hosts": group_repeats([replace(run(n, 8, 2**n, 1), host=f"h{n % 2}") for n in range(8)]),
    "large": group_repeats([run(n, 8 * (1 + n), n, 100 + n) for n in range(30)]),
}


def test_nothing_is_predicted_without_the_package_of_the_extra(monkeypatch):
    monkeypatch.setattr(prediction, "PACKAGE", "no_such_package")
    assert predict(grid(16)).reason == "packages"


@pytest.mark.parametrize("case", [*TEXTS, *IMPOSSIBLE])
def test_text(case):
    result = predict(IMPOSSIBLE[case]) if case in IMPOSSIBLE else TEXTS[case]
    assert_golden("prediction", result, case)
    values = json.loads(json.dumps(result.values, allow_nan=False))
    assert len(values.get("points", [])) == len(getattr(result, "points", []))
    assert ("why_not" in values) == isinstance(result, NoPrediction)
