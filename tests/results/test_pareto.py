"""Losses and Pareto fronts."""

import math
import random
from operator import le

import pytest

from epochmeter.results.pareto import is_pareto_front, to_losses


def test_losses_are_minimized_and_absent_if_a_metric_is_missing():
    metrics = {"steady/train_accuracy": 0.9, "steady/e2e_s": 3.0, "steady/energy_j": math.nan}
    assert to_losses(metrics, ["steady/train_accuracy", "steady/e2e_s"]) == (-0.9, 3.0)
    assert to_losses(metrics, ["steady/energy_j"]) is None
    assert to_losses(metrics, ["total/energy_j"]) is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_front_equals_its_definition_on_random_points(count):
    drawn = random.Random(5)
    points = [tuple(drawn.randrange(30) for _ in range(count)) for _ in range(200)]
    dominated = [any(other != one and all(map(le, other, one)) for other in points) for one in points]
    assert is_pareto_front(points) == [not point for point in dominated]
