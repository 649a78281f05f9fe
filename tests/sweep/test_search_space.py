"""Axes: what may be typed for a key, and what a sampler draws for it."""

import pytest

from epochmeter.sweep.search_space import Choices, Interval, WholeInterval, choices

LR = Interval("optimizer.lr", 0.001, 0.1, log=True)


def test_numbers_are_sorted_and_unique():
    assert choices("batch", ["32", "8", "16", "8"]).values == ["8", "16", "32"]
    assert choices("model", ["resnet18", "lenet"]).values == ["resnet18", "lenet"]
    assert choices("power_limit", ["null", "100"]).values == ["null", "100"]


@pytest.mark.parametrize(
    "axis",
    [choices("batch", ["8", "16"]), choices("model", "ab"), LR, Interval("x", -1, 1), WholeInterval("n", 1, 9, True)],
)
def test_typed_value_is_the_drawn_value(axis):
    for share in (0.0, 0.3, 1.0):
        override = axis.at(share)
        assert axis.typed(axis.drawn(override)) == override
        assert axis.drawn(override) is not None


def test_interval_values_have_few_digits_and_stay_within():
    axis = Interval("x", 0.1234564, 0.2)
    assert axis.typed(0.1498765432) == "x=0.149877"
    assert axis.typed(0.1234564) == "x=0.1234564"


def test_probes_are_all_choices_and_the_ends_of_intervals():
    assert Choices("model", ["lenet", "resnte"]).probes() == ["model=lenet", "model=resnte"]
    assert Interval("x", 1, 10).probes()[::2] == ["x=1.0", "x=10.0"]
    assert "." in Interval("batch", 8, 64).probes()[1], "where whole numbers are asked for, that is found out"
