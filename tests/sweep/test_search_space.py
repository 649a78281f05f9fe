"""Axes: what may be typed for a key, and what a sampler draws for it."""

import pytest

from epochmeter.sweep.search_space import CategoricalDimension, FloatDimension, IntDimension, categorical_dimension

LR = FloatDimension("optimizer.lr", 0.001, 0.1, log=True)


def test_numbers_are_sorted_and_unique():
    assert categorical_dimension("batch", ["32", "8", "16", "8"]).values == ["8", "16", "32"]
    assert categorical_dimension("model", ["resnet18", "lenet"]).values == ["resnet18", "lenet"]
    assert categorical_dimension("power_limit", ["null", "100"]).values == ["null", "100"]


@pytest.mark.parametrize(
    "axis",
    [
        categorical_dimension("batch", ["8", "16"]),
        categorical_dimension("model", "ab"),
        LR,
        FloatDimension("x", -1, 1),
        IntDimension("n", 1, 9, True),
    ],
)
def test_typed_value_is_the_drawn_value(axis):
    for share in (0.0, 0.3, 1.0):
        override = axis.at_fraction(share)
        assert axis.to_override(axis.from_override(override)) == override
        assert axis.from_override(override) is not None


def test_interval_values_have_few_digits_and_stay_within():
    axis = FloatDimension("x", 0.1234564, 0.2)
    assert axis.to_override(0.1498765432) == "x=0.149877"
    assert axis.to_override(0.1234564) == "x=0.1234564"


def test_probes_are_all_choices_and_the_ends_of_intervals():
    assert CategoricalDimension("model", ["lenet", "resnte"]).boundary_values() == ["model=lenet", "model=resnte"]
    assert FloatDimension("x", 1, 10).boundary_values()[::2] == ["x=1.0", "x=10.0"]
    assert "." in FloatDimension("batch", 8, 64).boundary_values()[1], (
        "where whole numbers are asked for, that is found out"
    )
