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


def test_override_of_a_value_in_the_space_has_that_value_and_few_digits():
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
    digits, names = SearchDimension("n", IntDistribution(1, 9)), list_dimension("m", "ab")
    outside = {LR: ["optimizer.lr=0.2", "optimizer.lr=much"], BATCH: ["batch=64"], names: ["m=c"], digits: ["n=2.5"]}
    for dimension, overrides in outside.items():
        for override in overrides:
            with pytest.raises(ValueError, match=r"."):
                dimension.from_override(override)


def test_sweeps_of_hydra_become_dimensions_unless_they_are_empty_or_infinite():
    assert SearchDimension("batch", IntDistribution(0, 2), ("8", "16", "32")) == BATCH
    assert dimensions("batch=32,8,16", "+a=range(0,3)", "model=choice(lenet,resnet18)", "power_limit=null,id:2") == [
        BATCH,
        list_dimension("+a", ["0", "1", "2"]),
        SearchDimension("model", CategoricalDistribution((0, 1)), ("lenet", "resnet18")),
        SearchDimension("power_limit", CategoricalDistribution((0, 1)), ("null", "id:2")),
    ]
    assert dimensions("optimizer.lr=tag(log, interval(0.001, 0.1))", "a=interval(1, 2)", "b=int(interval(1, 9))") == [
        LR,
        SearchDimension("a", FloatDistribution(1, 2)),
        SearchDimension("b", IntDistribution(1, 9)),
    ]
    for values in ("interval(2, 1)", "tag(log, interval(0, 1))", "range(0, 0)", "range(0, inf)", "interval(0.1, inf)",
                   "interval(nan, 1)"):  # fmt: skip
        with pytest.raises(SearchError):
            dimensions(f"a={values}")


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
