"""Dimensions of a search: values, overrides, and the sweeps of Hydra that they are made of."""

import math

import pytest

pytest.importorskip("optuna", reason="Optuna is optional")

from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from epochmeter.sweep.search_space import SearchDimension, SearchError, list_dimension, make_dimension, probe_points

LR = SearchDimension("optimizer.lr", FloatDistribution(0.001, 0.1, log=True))
BATCH = list_dimension("batch", ["32", "8", "16", "8"])


def dimensions(*overrides):
    return [make_dimension(override) for override in OverridesParser.create().parse_overrides(list(overrides))]


def test_override_of_a_value_has_that_value_and_few_digits():
    for dimension, count, values in (
        (BATCH, 3, {0: "batch=8", 2: "batch=32"}),
        (list_dimension("model", "ab"), 2, {0: "model=a"}),
        (LR, math.inf, {0.0123: "optimizer.lr=0.0123"}),
        (SearchDimension("x", FloatDistribution(1, 1)), 1, {1.0: "x=1.0"}),
        (SearchDimension("n", IntDistribution(1, 9, log=True)), 9, {4: "n=4"}),
    ):
        assert dimension.count == count
        assert {value: dimension.to_override(value) for value in values} == values
        assert [dimension.from_override(override) for override in values.values()] == [*values]
    dimension = SearchDimension("x", FloatDistribution(0.1234564, 0.2))
    assert [*map(dimension.to_override, (0.1498765432, 0.1234564))] == ["x=0.149877", "x=0.1234564"]


@pytest.mark.parametrize(
    ("dimension", "override"),
    [(LR, "optimizer.lr=0.2"), (LR, "optimizer.lr=much"), (BATCH, "batch=64"), (list_dimension("m", "ab"), "m=c"),
     (SearchDimension("n", IntDistribution(1, 9)), "n=2.5")],
)  # fmt: skip
def test_value_outside_the_space_is_refused(dimension, override):
    with pytest.raises(ValueError, match=r"."):
        dimension.from_override(override)


def test_sweeps_of_hydra_become_dimensions():
    assert SearchDimension("batch", IntDistribution(0, 2), ("8", "16", "32")) == BATCH
    assert dimensions("batch=32,8,16", "+a=range(0,3)", "model=choice(lenet,resnet18)", "power_limit=null,100") == [
        BATCH,
        list_dimension("+a", ["0", "1", "2"]),
        SearchDimension("model", CategoricalDistribution((0, 1)), ("lenet", "resnet18")),
        SearchDimension("power_limit", CategoricalDistribution((0, 1)), ("null", "100")),
    ]
    assert dimensions("optimizer.lr=tag(log, interval(0.001, 0.1))", "a=interval(1, 2)", "b=int(interval(1, 9))") == [
        LR,
        SearchDimension("a", FloatDistribution(1, 2)),
        SearchDimension("b", IntDistribution(1, 9)),
    ]


@pytest.mark.parametrize(
    "override",
    ["a=interval(2, 1)", "a=tag(log, interval(0, 1))", "a=range(0, 0)", "a=range(0, inf)", "a=interval(0.1, inf)",
     "a=interval(nan, 1)"],
)  # fmt: skip
def test_empty_or_infinite_sweep_is_refused(override):
    with pytest.raises(SearchError):
        dimensions(override)


def test_probes_are_all_listed_values_and_the_ends_of_intervals():
    space = dimensions("model=lenet,resnet18", "batch=8,16", "workers=int(interval(0,4))")
    assert probe_points(space, ["seed=1"]) == [
        ("seed=1", "model=lenet", "batch=8", "workers=0"),
        ("seed=1", "model=resnet18", "batch=8", "workers=0"),
        ("seed=1", "model=lenet", "batch=16", "workers=0"),
        ("seed=1", "model=lenet", "batch=8", "workers=4"),
    ]
    low, inside, high = dimensions("batch=interval(8, 64)")[0].probes()
    assert (low, high) == ("batch=8.0", "batch=64.0")
    assert not float(inside.partition("=")[2]).is_integer(), "an integer would not show that `batch` takes no fraction"
