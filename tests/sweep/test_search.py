"""Which points a search measures: known fronts found, nothing measured twice, and a search that was cut off goes on."""

import math
import random
import re
import statistics
from operator import le

import pytest

from epochmeter.sweep.search import (
    SAMPLERS,
    STEADY,
    TO_TARGET,
    SearchError,
    SearchSpec,
    TrialResult,
    available_objectives,
    is_pareto_front,
    next_point,
    resolve_objectives,
    run_search,
    to_losses,
)
from epochmeter.sweep.search_space import FloatDimension, IntDimension, categorical_dimension

pytest.importorskip("optuna", reason="no Optuna in this environment: it is an extra")
ENERGY, TIME = STEADY
GRID = [categorical_dimension("batch", ["8", "16", "32"]), categorical_dimension("power_limit", ["100", "130"])]
LR = FloatDimension("optimizer.lr", 0.001, 0.1, log=True)


def values(point):
    return {key: float(value) for key, _, value in (override.partition("=") for override in point)}


def of(told):
    """A stub of a run: its energy and time as a function of what was typed."""

    def measure(number, point):
        energy_j, time_s = told(**values(point))
        return TrialResult({ENERGY: energy_j, TIME: time_s})

    return measure


class Log(list):
    """What was measured, in order, of a stub that fails, or is cut off, where it is told to."""

    def __init__(self, measure=None, fails=(), ends_after=math.inf):
        self.measure = measure or of(lambda batch, power_limit: (power_limit + batch, 300 - power_limit - batch))
        self.fails, self.ends_after, self.said = fails, ends_after, []

    def __call__(self, number, point):
        if len(self) == self.ends_after:
            raise KeyboardInterrupt
        self.append((number, point))
        return TrialResult() if number in self.fails else self.measure(number, point)


def went(log, asked, earlier=None):
    """The search, and what it said beside which run is under way."""
    known = run_search(asked, earlier or {}, log, log.said.append)
    log.said = [text for text in log.said if not re.match(r"run \d+ \(", text)]
    return known


# A front that is known


def schaffer(x, y):
    """J. D. Schaffer's first problem beside a key that only costs: the front is all x from 0 to 2 where y is 0."""
    return x**2 + abs(y), (x - 2) ** 2 + abs(y)


def distance(point):
    """How far a point is from that front."""
    x, y = values(point)["x"], values(point)["y"]
    return max(-x, 0, x - 2) + abs(y)


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_search_comes_nearer_to_a_known_front_than_chance(sampler):
    def late(by):
        axes = [FloatDimension("x", -20, 20), FloatDimension("y", -20, 20)]
        return [*went(Log(of(schaffer)), SearchSpec(axes, STEADY, trials=24, sampler=by))][12:]

    assert statistics.fmean(map(distance, late(sampler))) < 0.8 * statistics.fmean(map(distance, late("random")))


def test_one_objective_is_brought_to_its_least():
    known = went(Log(of(lambda x: (0.0, (x - 7) ** 2))), SearchSpec([FloatDimension("x", 0, 100)], [TIME], trials=24))
    assert min(measured.metrics[TIME] for measured in known.values()) < 4


def test_what_is_better_the_more_of_it_there_is_is_brought_to_its_most():
    def measure(number, point):
        return TrialResult({"steady/samples_per_s": 100 - (values(point)["x"] - 7) ** 2})

    known = went(Log(measure), SearchSpec([FloatDimension("x", 0, 100)], ["steady/samples_per_s"], trials=24))
    assert max(measured.metrics["steady/samples_per_s"] for measured in known.values()) > 96


def test_losses_are_the_less_the_better():
    metrics = {"steady/train_accuracy": 0.9, TIME: 3.0, ENERGY: math.nan}
    assert to_losses(metrics, ["steady/train_accuracy", TIME]) == (-0.9, 3.0)
    assert to_losses(metrics, [ENERGY]) is None
    assert to_losses(metrics, ["total/energy_j"]) is None


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], []),
        ([(1.0, 1.0)], [True]),
        ([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], [True, True, True]),
        ([(1.0, 1.0), (2.0, 2.0)], [True, False]),
        ([(1.0, 2.0), (1.0, 3.0)], [True, False]),  # as good in one, worse in the other
        ([(2.0, 1.0), (3.0, 1.0)], [True, False]),
        ([(1.0, 1.0), (1.0, 1.0)], [True, True]),  # neither betters the other
        ([(3.0, 1.0), (2.0, 2.5), (2.5, 2.5), (1.0, 3.0)], [True, True, False, True]),
        ([(3,), (1,), (2,)], [False, True, False]),
        ([(1, 2, 3), (3, 2, 1), (3, 2, 3)], [True, True, False]),
    ],
)
def test_the_front_is_what_none_other_betters(points, expected):
    assert is_pareto_front(points) == expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_front_is_that_of_its_definition(count):
    """Each point held against every other: another way to it."""
    drawn = random.Random(5)
    points = [tuple(drawn.randrange(30) for _ in range(count)) for _ in range(200)]
    bettered = [any(other != one and all(map(le, other, one)) for other in points) for one in points]
    assert is_pareto_front(points) == [not each for each in bettered]


# What is measured


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_grid_is_measured_to_its_last_point_and_none_twice(sampler):
    log = Log()
    went(log, SearchSpec(GRID, STEADY, trials=20, sampler=sampler))
    assert [number for number, _ in log] == list(range(6))
    assert {point for _, point in log} == {(f"batch={b}", f"power_limit={w}") for b in (8, 16, 32) for w in (100, 130)}
    assert log.said == ["All 6 points of the space are measured, fewer than hydra.sweeper.trials=20."]


def test_so_many_points_are_measured_as_are_asked_for():
    log = Log()
    assert len(went(log, SearchSpec(GRID, STEADY, trials=4))) == len(log) == 4
    assert log.said == []


def test_which_run_is_under_way_is_said_before_it_begins():
    said = []
    log = Log()
    run_search(SearchSpec(GRID, STEADY, trials=2), {}, log, said.append)
    assert said == [f"run {number} ({number + 1} of 2): {' '.join(point)}" for number, point in log]
    said.clear()
    run_search(SearchSpec(GRID, STEADY, trials=20), dict(log), Log(), said.append)
    assert said[0].startswith("run 2 (3 of 6): ")


def test_without_anything_to_vary_there_is_one_point():
    log = Log(lambda number, point: TrialResult({ENERGY: 1.0, TIME: 1.0}))
    went(log, SearchSpec([], STEADY, trials=3))
    assert log == [(0, ())]


def test_an_interval_that_holds_but_one_number_ends_a_search():
    log = Log(of(lambda x: (x, x)))
    went(log, SearchSpec([FloatDimension("x", 1.0, 1.0)], STEADY, trials=3))
    assert log == [(0, ("x=1.0",))]


def test_the_same_seed_measures_the_same_points_and_another_others():
    def points(seed):
        log = Log(of(lambda **keys: (keys["optimizer.lr"], 1.0)))
        went(log, SearchSpec([LR], STEADY, trials=5, seed=seed))
        return list(log)

    assert points(3) == points(3)
    assert points(3) != points(4)


def test_a_point_that_fails_does_not_end_a_search_and_is_not_tried_again():
    log = Log(fails=(0, 2))
    known = went(log, SearchSpec(GRID, STEADY, trials=20))
    assert len(log) == 6
    assert sum(not measured.metrics for measured in known.values()) == 2


# Going on


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("cut", [1, 11])
def test_a_search_that_was_cut_off_goes_on_as_if_it_had_not_been(sampler, cut):
    def told(batch, **keys):
        return batch * keys["optimizer.lr"], 300 / batch

    asked = SearchSpec([IntDimension("batch", 1, 64), LR], STEADY, trials=14, sampler=sampler)
    straight, ended = Log(of(told), fails=(3,)), Log(of(told), fails=(3,), ends_after=cut)
    went(straight, asked)
    with pytest.raises(KeyboardInterrupt):
        went(ended, asked)
    resumed = Log(of(told), fails=(3,))
    went(resumed, asked, dict(ended))
    assert resumed == straight


def test_a_search_that_is_done_goes_on_with_more_trials():
    first, more = Log(), Log()
    went(first, SearchSpec(GRID, STEADY, trials=2))
    went(more, SearchSpec(GRID, STEADY, trials=5), dict(first))
    assert more[:2] == first
    assert [number for number, _ in more] == list(range(5))


def test_a_number_that_was_given_to_no_point_of_this_search_stays_taken():
    log = Log()
    earlier = {0: None, 2: ("batch=8", "power_limit=100"), 5: None}
    went(log, SearchSpec(GRID, STEADY, trials=3), earlier)
    assert [number for number, _ in log] == [2, 6, 7]
    assert log[0][1] == ("batch=8", "power_limit=100")


def test_the_next_of_many_points_is_found_though_the_study_is_made_anew_each_time():
    axes = [IntDimension("batch", 1, 1000), LR]
    known = {
        (f"batch={n}", f"optimizer.lr={0.001 + n / 1e5!r}"): TrialResult({ENERGY: n, TIME: -n}) for n in range(1, 101)
    }
    assert next_point(SearchSpec(axes, STEADY, trials=200), known)


# What it is for


def test_without_any_energy_measured_the_search_goes_on_by_time_and_says_why():
    log = Log(lambda number, point: TrialResult({TIME: values(point)["batch"]}, "no meter here."))
    asked = SearchSpec(GRID, STEADY, STEADY[:1], trials=20)
    known = went(log, asked)
    assert len(log) == 6
    assert available_objectives(asked, known) == [TIME]
    assert log.said[0] == "No steady/energy_j: no meter here. The search continues with steady/e2e_s only."
    assert len(log.said) == 2


def test_energy_that_was_asked_for_and_is_not_measured_ends_the_search_at_once():
    log = Log(lambda number, point: TrialResult({TIME: 1.0}, "no meter here."))
    with pytest.raises(
        SearchError,
        match=r"no run has steady/energy_j: no meter here\n  hint: give hydra.sweeper.objectives=\[steady/e2e_s\]",
    ):
        went(log, SearchSpec(GRID, STEADY, trials=20))
    assert len(log) == 1


def test_energy_that_one_run_lacks_is_that_runs_failure():
    def measure(number, point):
        return TrialResult({TIME: 1.0}, "it failed") if number == 1 else TrialResult({TIME: 1.0, ENERGY: 1.0})

    log = Log(measure)
    went(log, SearchSpec(GRID, STEADY, STEADY[:1], trials=3))
    assert log.said == ["run 1 has no steady/energy_j: the search ignores it."]


def test_a_target_that_no_run_has_reached_yet_may_be_reached_by_the_next():
    log = Log(lambda number, point: TrialResult({TIME: 1.0, ENERGY: 1.0}))
    went(log, SearchSpec(GRID, TO_TARGET, TO_TARGET[:1], trials=3))
    assert len(log) == 3
    assert log.said[0] == (
        "run 0 has no total/energy_to_target_j and no total/time_to_target_s: the search ignores it."
    )


def test_the_objectives_are_energy_and_time_unless_others_are_asked_for():
    assert resolve_objectives(None, to_target=False) == (STEADY, (ENERGY,))
    assert resolve_objectives(None, to_target=True) == (TO_TARGET, (TO_TARGET[0],))
    asked = ["total/edp_js", "steady/energy_gpu0_j", "throughput/samples_per_s"]
    assert resolve_objectives(asked, to_target=True) == (asked, ())


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "give one or more"),
        (["steady/e2e"], "steady/e2e is not a metric of runs\n  hint: did you mean steady/e2e_s?"),
        (["epoch/e2e_s"], "epoch/e2e_s is not a metric of runs"),
    ],
)
def test_objectives_that_no_run_has_are_refused_with_what_is_near(names, why):
    with pytest.raises(SearchError, match=why.replace("?", r"\?")):
        resolve_objectives(names, to_target=False)


# Axes


@pytest.mark.parametrize(
    ("axis", "override"),
    [(LR, "optimizer.lr=0.2"), (LR, "lr=0.01"), (LR, "optimizer.lr=much"), (GRID[0], "batch=64"),
     (IntDimension("n", 1, 9), "n=2.5")],
)  # fmt: skip
def test_what_is_not_on_an_axis_is_no_point_of_the_search(axis, override):
    assert SearchSpec([axis], STEADY).point_of([override]) is None


def test_a_point_is_read_from_what_was_typed_for_its_run():
    asked = SearchSpec([*GRID, LR], STEADY)
    typed = ["model=lenet", "optimizer.lr=0.05", "power_limit=130", "batch=8"]
    assert asked.point_of(typed) == ("batch=8", "power_limit=130", "optimizer.lr=0.05")
    assert asked.point_of(typed[:-1]) is None
