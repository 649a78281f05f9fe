"""Search: known fronts are found, no point is measured twice, and an interrupted search resumes."""

import math
import re
import statistics
from dataclasses import replace

import pytest
from metadata import RUN

pytest.importorskip("optuna", reason="Optuna is optional")

from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler

from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import Record
from epochmeter.sweep import search as searches
from epochmeter.sweep.search import STEADY, TO_TARGET, SearchSpec, TrialResult, with_prior
from epochmeter.sweep.search_space import SearchDimension, SearchError, list_dimension

ENERGY, TIME = STEADY
GRID = [list_dimension("batch", ["8", "16", "32"]), list_dimension("power_limit", ["100", "130"])]
LR = SearchDimension("optimizer.lr", FloatDistribution(0.001, 0.1, log=True))


def real(key, low, high):
    return SearchDimension(key, FloatDistribution(low, high))


def values(point):
    return {key: float(value) for key, _, value in (override.partition("=") for override in point)}


def runs_of(function):
    """Return a stub of a run whose energy and time are a function of its keys."""
    return lambda number, point: TrialResult(dict(zip(STEADY, function(**values(point)), strict=True)))


class Runs(list):
    """Numbered points in the order of their measurement, with a stub that fails or is interrupted on request."""

    def __init__(self, measure=None, fails=(), ends_after=math.inf):
        self.measure = measure or runs_of(lambda batch, power_limit: (power_limit + batch, 300 - power_limit - batch))
        self.fails, self.ends_after, self.messages = fails, ends_after, []

    def __call__(self, number, point):
        if len(self) == self.ends_after:
            raise KeyboardInterrupt
        self.append((number, point))
        return TrialResult() if number in self.fails else self.measure(number, point)


def search(runs, spec, earlier=None):
    """Run a search, and keep its messages except those about the next run."""
    results = searches.run_search(spec, earlier or {}, runs, runs.messages.append)
    runs.messages = [text for text in runs.messages if not re.match(r"run \d+ \(", text)]
    return results


def test_search_is_closer_to_a_known_front_than_random_points(monkeypatch):
    """J. D. Schaffer's first problem with a second key that only costs: the front is 0 <= x <= 2, y = 0."""

    def distance(point):
        x, y = values(point)["x"], values(point)["y"]
        return max(-x, 0, x - 2) + abs(y)

    def mean_distance():
        spec = SearchSpec([real("x", -20, 20), real("y", -20, 20)], STEADY, trials=24)
        return statistics.fmean(map(distance, [*search(Runs(runs_of(schaffer)), spec)][12:]))

    of_search = mean_distance()
    monkeypatch.setattr(searches, "TPESampler", RandomSampler)
    assert of_search < 0.8 * mean_distance()


def schaffer(x, y):
    return x**2 + abs(y), (x - 2) ** 2 + abs(y)


def prior_run(folder, number, overrides, metrics, state="completed", schema=1, **run):
    choices = {"model": "lenet", "dataset": "digits"}
    run = {**RUN, "overrides": overrides, "choices": choices, "energy": {"reason": "no meter"}, **run}
    (folder / str(number)).mkdir(parents=True)
    write_json(folder / str(number) / "job.json", {"schema": schema, "job": {}, "run": run})
    Record(folder / str(number)).write_summary({"state": state, "metrics": metrics}, "id")


def test_search_learns_from_the_runs_of_earlier_sweeps_that_fit(tmp_path):
    spec = SearchSpec(GRID, STEADY, trials=20)
    fits, metrics = ["batch=8", "power_limit=100", "epochs=2"], {ENERGY: 5.0, TIME: 2.0}
    runs = [
        (fits, metrics, {}),
        (["batch=16", "power_limit=130"], {ENERGY: 4.0, TIME: 3.0}, {}),
        (["batch=8"], metrics, {}),
        (["batch=9", "power_limit=100"], metrics, {}),
        (fits, metrics, {"state": "failed"}),
        (fits, metrics, {"schema": 99}),
        (fits, metrics, {"rehearsal": ["device=nano"]}),
        (fits, metrics, {"choices": {"model": "vgg", "dataset": "digits"}}),
        (fits, {TIME: 2.0}, {}),
    ]
    for number, (overrides, own, changed) in enumerate(runs):
        prior_run(tmp_path / "a", number, overrides, own, **changed)
    (tmp_path / "a" / "9").mkdir()
    prior_run(tmp_path / "b", 0, fits, metrics)
    messages = []
    choices = {"model": "lenet", "dataset": "digits"}
    seeded = with_prior(spec, [tmp_path / "a", tmp_path / "b", tmp_path / "b"], choices, messages.append)
    point = ("batch=8", "power_limit=100")
    assert seeded.prior == [(point, metrics), (("batch=16", "power_limit=130"), runs[1][1]), (point, metrics)]
    assert messages == [
        "sweep.prior: 3 of 11 runs seed the search; left out: 2 with other keys or values, 1 not completed, "
        "1 of another schema, 1 rehearsed, 1 with another model, 1 unreadable, "
        "1 without steady/energy_j or steady/e2e_s"
    ]
    with pytest.raises(SearchError, match="has no runs"):
        with_prior(spec, [tmp_path], choices, messages.append)
    measured = search(Runs(), seeded)
    assert len(measured) == 6
    assert set([*measured][4:]) == {point for point, _ in seeded.prior}, "points of earlier sweeps come last"


def test_search_in_a_measured_space_begins_with_the_best_of_earlier_sweeps():
    costs = runs_of(lambda n: ((n - 70) ** 2, 1.0))
    space = [SearchDimension("n", IntDistribution(1, 100))]
    prior = [((f"n={n}",), costs(0, (f"n={n}",)).metrics) for n in range(1, 101)]
    runs = Runs(costs)
    search(runs, SearchSpec(space, STEADY, trials=5, prior=prior))
    assert len(runs) == 5
    assert statistics.median(abs(values(point)["n"] - 70) for _, point in runs) < 10


def test_small_space_is_measured_completely_and_no_point_twice():
    """Not even if it failed."""
    runs = Runs(fails=(0, 2))
    results = search(runs, SearchSpec(GRID, STEADY, trials=20))
    assert [bool(result.metrics) for result in results.values()] == [False, True, False, True, True, True]
    assert [number for number, _ in runs] == list(range(6))
    assert {point for _, point in runs} == {(f"batch={b}", f"power_limit={w}") for b in (8, 16, 32) for w in (100, 130)}
    assert runs.messages == ["All 6 points of the space are measured, fewer than hydra.sweeper.trials=20."]
    for dimensions, point in (([], ()), ([real("x", 1.0, 1.0)], ("x=1.0",))):
        runs = Runs(lambda number, point: TrialResult({ENERGY: 1.0, TIME: 1.0}))
        search(runs, SearchSpec(dimensions, STEADY, trials=3))
        assert runs == [(0, point)]


@pytest.mark.parametrize("cut", [1, 11])
def test_interrupted_search_resumes_as_if_it_had_not_been_interrupted(cut):
    def costs(batch, **keys):
        return batch * keys["optimizer.lr"], 300 / batch

    batch = SearchDimension("batch", IntDistribution(1, 64))
    spec = SearchSpec([batch, LR], STEADY, trials=14)
    complete, interrupted, resumed = (Runs(runs_of(costs), fails=(3,), ends_after=end) for end in (99, cut, 99))
    search(complete, spec)
    with pytest.raises(KeyboardInterrupt):
        search(interrupted, spec)
    search(resumed, spec, dict(interrupted))
    assert resumed == complete
    search(other := Runs(runs_of(costs), fails=(3,)), replace(spec, seed=1))
    assert other != complete
    runs, earlier = Runs(), {0: None, 2: ("batch=8", "power_limit=100"), 5: None}
    search(runs, SearchSpec(GRID, STEADY, trials=3), earlier)
    assert [number for number, _ in runs] == [2, 6, 7], "numbers of other runs are not used again"
    assert searches.planned_runs(SearchSpec(GRID, STEADY, trials=3), earlier) == 8


@pytest.mark.parametrize("size", [30, 200_000])
def test_sampler_that_repeats_a_point_is_replaced_by_random_points(size, monkeypatch):
    monkeypatch.setattr(searches, "MAX_REPEATED_ASKS", 0)
    spec = SearchSpec([SearchDimension("n", IntDistribution(1, size))], [TIME], trials=30)
    results = {(f"n={n}",): TrialResult({TIME: n}) for n in range(1, 30)}
    point = searches.next_point(spec, results)
    assert point is not None
    assert point not in results


def test_search_continues_by_the_objectives_that_are_measured_and_ends_without_any():
    runs = Runs(lambda number, point: TrialResult({TIME: values(point)["batch"]}, "no meter here."))
    spec = SearchSpec(GRID, STEADY, trials=20)
    results = search(runs, spec)
    assert len(runs) == 6
    assert searches.available_objectives(spec, results) == [TIME]
    assert runs.messages[0] == "The search minimizes only steady/e2e_s: there is no steady/energy_j: no meter here."
    runs = Runs(lambda number, point: TrialResult({TIME: 1.0, ENERGY: 1.0}))
    search(runs, SearchSpec(GRID, TO_TARGET, trials=3))
    assert len(runs) == 3, "it continues until a run reaches the target"
    runs = Runs(lambda number, point: TrialResult({"total/e2e_s": 1.0}, "no meter here."))
    with pytest.raises(SearchError, match="no run has steady/energy_j or steady/e2e_s\n  hint: give more `epochs`"):
        search(runs, spec)
    assert len(runs) == 1
