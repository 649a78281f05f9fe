"""Predictions of configurations that were not run: of known laws, and refused for too little data."""

import itertools
import json
import random
import shlex
from dataclasses import replace

import pytest
from sweeps import DATA_SOURCES, trained

from epochmeter.report.analyses import gaussian, prediction
from epochmeter.report.analyses.prediction import grid as table_of
from epochmeter.report.analyses.prediction import predict, sentences, values
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import costs

BATCHES, WORKERS, LIMITS = (8, 16, 32, 64), (0, 1, 2, 4), (100, 150, 200)


def time_of(batch, workers, limit):
    """A law that is smooth on the scales of the keys."""
    return (20 + 400 / batch) * (1 + 0.5 / (workers + 1)) * (250 / limit) ** 0.3


def run(number, batch, workers, limit, energy=True, law=time_of, **more):
    time_s = law(batch, workers, limit)
    steady = {"e2e_s": time_s, "energy_j": 0.8 * limit * time_s if energy else None}
    typed = {"batch": str(batch), "workers": str(workers), "power_limit": str(limit)}
    return trained(number, 100.0, steady=steady, typed=typed, batch=batch, workers=workers, power_limit=limit, **more)


def grid(count, **more):
    """Return a number of configurations of the grid, drawn with a seed."""
    every = list(itertools.product(BATCHES, WORKERS, LIMITS))
    return group_repeats([run(number, *at, **more) for number, at in enumerate(random.Random(2).sample(every, count))])


@pytest.fixture(scope="module")
def result():
    return predict(grid(20))


def test_all_other_configurations_of_the_grid_are_predicted(result):
    assert len(result.points) == 4 * 4 * 3 - 20
    off = [abs(point.time_s.value / time_of(*_at(point)) - 1) for point in result.points]
    assert sorted(off)[len(off) // 2] < 0.01
    assert max(off) < 0.1


def _at(point):
    return [float(point.keys[key]) for key in ("batch", "workers", "power_limit")]


def test_power_and_energy_are_predicted(result):
    off = [abs(point.power_w.value / (0.8 * float(point.keys["power_limit"])) - 1) for point in result.points]
    assert max(off) < 0.03
    point = result.points[0]
    assert point.energy_j == pytest.approx(point.time_s.value * point.power_w.value)


def test_intervals_cover_the_true_values(result):
    held = [point.time_s.contains(time_of(*_at(point))) for point in result.points]
    assert sum(held) >= 0.8 * len(held)
    assert all(point.time_s.low < point.time_s.value < point.time_s.high for point in result.points)


def test_cross_validated_error_is_smaller_than_that_of_the_mean(result):
    error = result.errors["time"]
    assert error.configurations == 20
    assert error.median < 0.05 < error.guess
    assert error.median <= error.most


def test_next_runs_are_different_configurations_of_the_grid(result):
    assert len({point.title for point in result.next_three}) == 3
    assert all(point in result.points for point in result.next_three)


def test_next_run_is_the_most_uncertain_given_those_before_it():
    """All batches ran without workers at 100 W, except one with eight: the opposite corner is unknown."""
    runs = [run(n, batch, 0, 100) for n, batch in enumerate(BATCHES)]
    runs += [run(10 + n, 8, 0, limit) for n, limit in enumerate((150, 200))]
    runs += [run(20 + n, 8, workers, 100) for n, workers in enumerate((1, 2, 4))]
    first, second, third = map(_at, predict(group_repeats(runs)).next_three)
    assert first == [64.0, 4.0, 200.0]
    assert (second, third) == ([64.0, 4.0, 100.0], [16.0, 4.0, 200.0])  # not [32, 4, 200], next to the first


def test_commands_are_valid_overrides(result, composed):
    for point in result.next_three:
        job = composed(*shlex.split(point.command)[2:])
        assert (str(job.batch), str(job.workers)) == (point.keys["batch"], point.keys["workers"])


def test_named_values_are_fitted():
    factor = {"resnet50": 1.0, "resnet152": 2.4}
    runs = [
        replace(row, keys={**row.keys, "model": model})
        for model in factor
        for batch, workers in itertools.product(BATCHES, WORKERS[:2])
        for row in [run(0, batch, workers, 100, law=lambda *at, m=model: factor[m] * time_of(*at), model=model)]
        if (model, batch, workers) != ("resnet50", 16, 1)
    ]
    (point,) = predict(group_repeats(runs)).points
    assert (point.keys["model"], point.keys["batch"], point.keys["workers"]) == ("resnet50", "16", "1")
    assert point.time_s.value == pytest.approx(time_of(16, 1, 100), rel=0.05)


def test_repeats_are_one_configuration():
    runs = [run(2 * n + r, *at, repeat=r) for n, at in enumerate(itertools.product(BATCHES, WORKERS[:2], LIMITS[:1]))
            for r in (0, 1) if n != 3]  # fmt: skip
    assert predict(group_repeats(runs)).errors["time"].configurations == 7


def stalled(number, data_source, batch):
    """Return a run of a sweep over data sources, which set keys that were not overridden."""
    e2e_s = (2 if data_source == "storage" else 1) * (20 + 400 / batch)
    result = trained(
        number, 100.0, steady={"e2e_s": e2e_s}, typed={"data_source": data_source, "batch": str(batch)}, batch=batch
    )
    return replace(result, job={**result.job, **DATA_SOURCES[data_source]})


def test_key_set_by_an_overridden_key_is_not_part_of_the_grid():
    every = itertools.product(("cached", "storage"), (8, 16, 32, 64, 128))
    runs = [stalled(n, data_source, batch) for n, (data_source, batch) in enumerate(every)]
    assert predict(group_repeats(runs)) == "all configurations of the grid of data_source, batch were run"
    (point,) = predict(group_repeats(runs[:-1])).points
    assert point.title == "data_source storage, batch 128"


def placed(number, storage, root, batch):
    keys = {"storage": storage, "storage.root": root, "batch": str(batch)}
    slow = {"nvme": 1, "ssd": 1.5, "hdd": 3}[storage]
    return trained(number, 100.0, steady={"e2e_s": slow * (20 + 400 / batch)}, typed=keys, batch=batch,
                   storage={"name": storage, "root": root})  # fmt: skip


def test_dependent_keys_stay_in_pairs():
    """Three storages have one folder each, and one of them has two: none is suggested with another's folder."""
    places = [("nvme", "/"), ("ssd", "/ssd"), ("ssd", "/ssd2"), ("hdd", "/hdd")]
    every = list(itertools.product(places, (8, 16, 32, 64, 128)))
    result = predict(group_repeats([placed(n, *place, batch) for n, (place, batch) in enumerate(every) if n != 7]))
    (point,) = result.points
    assert point.keys == {"storage.root": "/ssd", "batch": "32"}
    words = shlex.split(point.command)
    assert {"storage=ssd", "storage.root=/ssd", "batch=32"} <= set(words)
    pairs = predict(group_repeats([placed(n, *place, batch) for n, (place, batch) in enumerate(every)
                            if place[1] != "/ssd2" and n != 7]))  # fmt: skip
    (point,) = pairs.points
    assert point.title == "storage ssd, batch 32"
    assert "storage.root=/ssd" in shlex.split(point.command)


def test_key_with_unique_values_determines_no_other():
    """A sampled learning rate identifies each configuration without determining its other keys."""
    runs = [run(n, *at, 100) for n, at in enumerate(itertools.product((8, 16), (0, 1)))]
    runs = [replace(each, keys={**each.keys, "optimizer.lr": f"0.0{each.number + 1}"}) for each in runs]
    assert prediction._keys(costs(group_repeats(runs)))[0] == ["batch", "workers", "optimizer.lr"]


# What cannot be


@pytest.mark.parametrize(
    ("configurations", "why"),
    [
        (group_repeats([]), "only 0 configurations with a time; 6 are needed"),
        (grid(1), "only 1 configuration with a time"),
        (grid(5), "only 5 configurations with a time"),
        (group_repeats([trained(0, 100.0)]) * 8, "do not differ in any key"),
        (
            group_repeats([trained(n, 100.0, workers=n) for n in range(8)]),
            "the grid of workers were run",
        ),
        (group_repeats([replace(run(n, 8, 2**n, 100), host=f"h{n % 2}") for n in range(8)]), "on 2 hosts"),
        (
            group_repeats([run(n, 8 * (1 + n), 1, 100) for n in range(8)]),
            "the grid of batch were run",
        ),
        (group_repeats([run(n, 8 * (1 + n), n, 100 + n) for n in range(30)]), "has 27,000 configurations"),
    ],
)
def test_impossible_prediction_has_a_reason(configurations, why):
    result = predict(configurations)
    assert why in result
    assert sentences(result) == [f"No prediction: {result}."]
    assert values(result) == {"why_not": result}


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_not_predicted(seed):
    drawn = random.Random(seed)
    result = predict(grid(16, energy=False, law=lambda *at: drawn.uniform(1, 10)))
    assert isinstance(result, str)
    assert "predicted hardly better than by the mean" in result


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_configuration_without_time_is_not_fitted(value):
    assert "only 5 configurations" in predict(
        [*grid(5), *group_repeats([run(9, 8, 0, 200, law=lambda *at: value, energy=False)])]
    )


def test_without_energy_only_time_is_predicted():
    result = predict(grid(20, energy=False))
    assert (list(result.errors), result.points[0].power_w, result.points[0].energy_j) == (["time"], None, None)
    assert "No power is predicted: 20 of 20 runs measured none: no meter here." in sentences(result)


def test_many_configurations_are_sampled(monkeypatch):
    monkeypatch.setattr(prediction, "MAX_CONFIGURATIONS", 12)
    result = predict(grid(20, energy=False))
    assert result.errors["time"].configurations == 12
    assert len(result.points) == 28
    assert "Fitted to a random sample of 12 of 20 configurations." in sentences(result)


def test_non_finite_power_is_not_fitted():
    first, *others = grid(20)
    (row,) = first.runs
    broken = replace(row, metrics={**row.metrics, "steady/energy_j": float("nan")})
    result = predict([*group_repeats([broken]), *others])
    assert result.notes == ["No power is predicted: not all configurations have one."]


def test_constant_times_are_predicted():
    result = predict(grid(20, law=lambda *at: 10.0))
    assert result.points[0].time_s.value == pytest.approx(10.0)


def test_table_has_the_fastest_and_values_have_all(result):
    table = table_of(result)
    seconds = [float(row[1].split()[0]) for row in table.rows]
    assert (len(seconds), seconds) == (10, sorted(seconds))
    assert table.title == "Predicted, with 95 % intervals of a run, the 10 fastest of 28"
    assert len(json.loads(json.dumps(values(result), allow_nan=False))["points"]) == 28
    assert sentences(result)[0] == "Predicted from 20 configurations: 28 configurations that were not run."


def test_intervals_are_of_means_if_fitted_to_means():
    every = list(itertools.product(BATCHES, WORKERS[:2], LIMITS[:1]))
    runs = [run(2 * n + r, *at, repeat=r) for n, at in enumerate(every) for r in (0, 1) if n != 3]
    assert predict(group_repeats(runs)).of == "the mean of 2 runs"
    assert predict(group_repeats(runs[1:])).of == "the mean of the runs of a configuration"


def test_held_out_configurations_are_predicted_by_other_processes(monkeypatch):
    """With folds too, no process is fitted to configurations of its held-out fold."""
    monkeypatch.setattr(gaussian, "MAX_LEAVE_ONE_OUT", 10)
    seen = []
    fit = gaussian.fit

    def watched(places, values, like=None, starts=3):
        if starts == 1:
            seen.append(len(values))
            assert like is None
        return fit(places, values, like, starts)

    monkeypatch.setattr(gaussian, "fit", watched)
    result = predict(grid(20, energy=False))
    assert seen == [18] * gaussian.FOLDS
    assert "Cross-validated error of time (10-fold)" in " ".join(sentences(result))


@pytest.mark.parametrize("bias", [0.5, 1.0, 3.0])
def test_width_of_intervals_is_calibrated_by_the_errors(bias):
    """Of a process whose standard deviations are wrong by a factor, 95 % of new errors are within the interval."""
    chance = random.Random(0)
    within = 0
    for _ in range(200):
        width = gaussian._calibrated_width([chance.gauss(0, bias) for _ in range(12)], [1.0] * 12)
        within += sum(abs(chance.gauss(0, bias)) <= width for _ in range(10))
    assert 0.93 <= within / 2000 <= 0.97
