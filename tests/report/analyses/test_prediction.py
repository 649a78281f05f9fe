"""What points that were not run would take: of laws that are known, and refused where nothing can be learned."""

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
    """A law, smooth on the scales that the keys are learned on."""
    return (20 + 400 / batch) * (1 + 0.5 / (workers + 1)) * (250 / limit) ** 0.3


def run(number, batch, workers, limit, energy=True, law=time_of, **more):
    time_s = law(batch, workers, limit)
    steady = {"e2e_s": time_s, "energy_j": 0.8 * limit * time_s if energy else None}
    typed = {"batch": str(batch), "workers": str(workers), "power_limit": str(limit)}
    return trained(number, 100.0, steady=steady, typed=typed, batch=batch, workers=workers, power_limit=limit, **more)


def grid(count, **more):
    """So many of the grid's points, drawn by a seed."""
    every = list(itertools.product(BATCHES, WORKERS, LIMITS))
    return group_repeats([run(number, *at, **more) for number, at in enumerate(random.Random(2).sample(every, count))])


@pytest.fixture(scope="module")
def told():
    return predict(grid(20))


def test_a_law_is_learned_and_every_other_point_of_the_grid_predicted(told):
    assert len(told.points) == 4 * 4 * 3 - 20
    off = [abs(point.time_s.value / time_of(*_at(point)) - 1) for point in told.points]
    assert sorted(off)[len(off) // 2] < 0.01
    assert max(off) < 0.1


def _at(point):
    return [float(point.keys[key]) for key in ("batch", "workers", "power_limit")]


def test_power_and_energy_come_with_it(told):
    off = [abs(point.power_w.value / (0.8 * float(point.keys["power_limit"])) - 1) for point in told.points]
    assert max(off) < 0.03
    point = told.points[0]
    assert point.energy_j == pytest.approx(point.time_s.value * point.power_w.value)


def test_intervals_hold_what_they_should(told):
    held = [point.time_s.contains(time_of(*_at(point))) for point in told.points]
    assert sum(held) >= 0.8 * len(held)
    assert all(point.time_s.low < point.time_s.value < point.time_s.high for point in told.points)


def test_the_error_is_that_of_jobs_left_out_and_better_than_a_guess(told):
    error = told.errors["time"]
    assert error.jobs == 20
    assert error.median < 0.05 < error.guess
    assert error.median <= error.most


def test_the_next_three_are_of_the_grid_and_all_different(told):
    assert len({point.title for point in told.next_three}) == 3
    assert all(point in told.points for point in told.next_three)


def test_the_least_certain_is_the_farthest_from_what_was_run_and_what_lies_beside_it_waits():
    """All batches ran without a process and at 100 W, but for one with eight: the corner opposite is unknown."""
    runs = [run(n, batch, 0, 100) for n, batch in enumerate(BATCHES)]
    runs += [run(10 + n, 8, 0, limit) for n, limit in enumerate((150, 200))]
    runs += [run(20 + n, 8, workers, 100) for n, workers in enumerate((1, 2, 4))]
    first, second, third = map(_at, predict(group_repeats(runs)).next_three)
    assert first == [64.0, 4.0, 200.0]
    assert (second, third) == ([64.0, 4.0, 100.0], [16.0, 4.0, 200.0]), "not [32, 4, 200], which the first tells of"


def test_commands_are_such_as_hydra_takes(told, composed):
    for point in told.next_three:
        job = composed(*shlex.split(point.command)[2:])
        assert (str(job.batch), str(job.workers)) == (point.keys["batch"], point.keys["workers"])


def test_what_has_a_name_is_learned_too():
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


def test_repeats_are_one_point_and_left_out_together():
    runs = [run(2 * n + r, *at, repeat=r) for n, at in enumerate(itertools.product(BATCHES, WORKERS[:2], LIMITS[:1]))
            for r in (0, 1) if n != 3]  # fmt: skip
    assert predict(group_repeats(runs)).errors["time"].jobs == 7


def stalled(number, data_source, batch):
    """A run of a sweep over data sources: what those set was not typed."""
    e2e_s = (2 if data_source == "storage" else 1) * (20 + 400 / batch)
    told = trained(
        number, 100.0, steady={"e2e_s": e2e_s}, typed={"data_source": data_source, "batch": str(batch)}, batch=batch
    )
    return replace(told, job={**told.job, **DATA_SOURCES[data_source]})


def test_what_follows_from_what_was_typed_is_no_key_of_its_own():
    every = itertools.product(("cached", "storage"), (8, 16, 32, 64, 128))
    runs = [stalled(n, data_source, batch) for n, (data_source, batch) in enumerate(every)]
    assert predict(group_repeats(runs)) == "every point of the grid of data_source, batch was run"
    (point,) = predict(group_repeats(runs[:-1])).points
    assert point.title == "data_source storage, batch 128"


def placed(number, storage, root, batch):
    keys = {"storage": storage, "storage.root": root, "batch": str(batch)}
    slow = {"nvme": 1, "ssd": 1.5, "hdd": 3}[storage]
    return trained(number, 100.0, steady={"e2e_s": slow * (20 + 400 / batch)}, typed=keys, batch=batch,
                   storage={"name": storage, "root": root})  # fmt: skip


def test_what_was_typed_in_pairs_stays_so():
    """Three storages, each at its own place, and one of them at two: no storage is asked for at another's."""
    places = [("nvme", "/"), ("ssd", "/ssd"), ("ssd", "/ssd2"), ("hdd", "/hdd")]
    every = list(itertools.product(places, (8, 16, 32, 64, 128)))
    told = predict(group_repeats([placed(n, *place, batch) for n, (place, batch) in enumerate(every) if n != 7]))
    (point,) = told.points
    assert point.keys == {"storage.root": "/ssd", "batch": "32"}
    words = shlex.split(point.command)
    assert {"storage=ssd", "storage.root=/ssd", "batch=32"} <= set(words)
    pairs = predict(group_repeats([placed(n, *place, batch) for n, (place, batch) in enumerate(every)
                            if place[1] != "/ssd2" and n != 7]))  # fmt: skip
    (point,) = pairs.points
    assert point.title == "storage ssd, batch 32"
    assert "storage.root=/ssd" in shlex.split(point.command)


def test_a_key_whose_values_are_all_different_leads_no_other():
    """A learning rate that was drawn tells each job from all others, and sets nothing in them."""
    runs = [run(n, *at, 100) for n, at in enumerate(itertools.product((8, 16), (0, 1)))]
    runs = [replace(each, keys={**each.keys, "optimizer.lr": f"0.0{each.number + 1}"}) for each in runs]
    assert prediction._keys(costs(group_repeats(runs)))[0] == ["batch", "workers", "optimizer.lr"]


# What cannot be


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (group_repeats([]), "0 jobs with a time are too few to learn from: it takes 6 or more"),
        (grid(1), "1 jobs with a time are too few"),
        (grid(5), "5 jobs with a time are too few"),
        (group_repeats([trained(0, 100.0)]) * 8, "differ in no key"),
        (group_repeats([trained(n, 100.0, workers=n) for n in range(8)]), "every point of the grid of workers was run"),
        (group_repeats([replace(run(n, 8, 2**n, 100), host=f"h{n % 2}") for n in range(8)]), "on 2 hosts"),
        (group_repeats([run(n, 8 * (1 + n), 1, 100) for n in range(8)]), "every point of the grid of batch was run"),
        (group_repeats([run(n, 8 * (1 + n), n, 100 + n) for n in range(30)]), "has 27000 points, more than 10000"),
    ],
)
def test_where_nothing_can_be_learned_it_says_why(found, why):
    told = predict(found)
    assert why in told
    assert sentences(told) == [f"No prediction: {told}."]
    assert values(told) == {"why_not": told}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_chance_is_not_predicted(seed):
    drawn = random.Random(seed)
    told = predict(grid(16, energy=False, law=lambda *at: drawn.uniform(1, 10)))
    assert isinstance(told, str)
    assert "predicted little better than by the mean of the others" in told


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_job_without_a_time_is_none_to_learn_from(value):
    assert "5 jobs" in predict([*grid(5), *group_repeats([run(9, 8, 0, 200, law=lambda *at: value, energy=False)])])


def test_without_energy_time_is_predicted_alone_and_that_is_said():
    told = predict(grid(20, energy=False))
    assert (list(told.errors), told.points[0].power_w, told.points[0].energy_j) == (["time"], None, None)
    assert "No power is predicted: 20 of 20 runs measured none: no meter here." in sentences(told)


def test_of_very_many_some_are_learned_from_and_that_is_said(monkeypatch):
    monkeypatch.setattr(prediction, "MOST_JOBS", 12)
    told = predict(grid(20, energy=False))
    assert told.errors["time"].jobs == 12
    assert len(told.points) == 28
    assert "Of 20 jobs 12, drawn at random, were learned from." in sentences(told)


def test_power_that_is_not_finite_is_not_learned():
    first, *others = grid(20)
    (row,) = first.runs
    broken = replace(row, metrics={**row.metrics, "steady/energy_j": float("nan")})
    told = predict([*group_repeats([broken]), *others])
    assert told.notes == ["No power is predicted: not all of these jobs have one."]


def test_times_that_do_not_vary_are_predicted_as_they_are():
    told = predict(grid(20, law=lambda *at: 10.0))
    assert told.points[0].time_s.value == pytest.approx(10.0)


def test_the_table_has_the_fastest_first_and_machines_have_all(told):
    table = table_of(told)
    seconds = [float(row[1].split()[0]) for row in table.rows]
    assert (len(seconds), seconds) == (10, sorted(seconds))
    assert table.title == "Predicted, with 95 % intervals of a run, the 10 fastest of 28"
    assert len(json.loads(json.dumps(values(told), allow_nan=False))["points"]) == 28
    assert sentences(told)[0] == "Predicted from 20 jobs: 28 points of the grid that were not run."


def test_an_interval_is_of_a_mean_where_what_was_learned_from_are_means():
    every = list(itertools.product(BATCHES, WORKERS[:2], LIMITS[:1]))
    runs = [run(2 * n + r, *at, repeat=r) for n, at in enumerate(every) for r in (0, 1) if n != 3]
    assert predict(group_repeats(runs)).of == "the mean of 2 runs"
    assert predict(group_repeats(runs[1:])).of == "the mean of as many runs as these jobs have"


def test_a_process_that_has_not_seen_a_job_is_asked_for_it(monkeypatch):
    """Of many jobs too: none of the processes that are fitted anew has any of the part that it is asked for."""
    monkeypatch.setattr(gaussian, "MAX_LEAVE_ONE_OUT", 10)
    seen = []
    fit = gaussian.fit

    def watched(places, values, like=None, starts=3):
        if starts == 1:
            seen.append(len(values))
            assert like is None, "scales that were found with all of them know each"
        return fit(places, values, like, starts)

    monkeypatch.setattr(gaussian, "fit", watched)
    told = predict(grid(20, energy=False))
    assert seen == [18] * gaussian.FOLDS
    assert "Left out in 10 parts, one at a time, their time is" in " ".join(sentences(told))


@pytest.mark.parametrize("bias", [0.5, 1.0, 3.0])
def test_width_of_intervals_is_calibrated_by_the_errors(bias):
    """Of a process whose standard deviations are wrong by a factor, 95 % of new errors are within the interval."""
    chance = random.Random(0)
    within = 0
    for _ in range(200):
        width = gaussian._calibrated_width([chance.gauss(0, bias) for _ in range(12)], [1.0] * 12)
        within += sum(abs(chance.gauss(0, bias)) <= width for _ in range(10))
    assert 0.93 <= within / 2000 <= 0.97
