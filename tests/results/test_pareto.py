"""Pareto fronts; losses are on the golden pages of searches."""

import random
from operator import le

import pytest

from epochmeter.results.pareto import is_pareto_front


@pytest.mark.parametrize("count", [1, 2, 3])
def test_front_equals_its_definition_on_random_points(count):
    drawn = random.Random(5)
    points = [tuple(drawn.randrange(30) for _ in range(count)) for _ in range(200)]
    dominated = [any(other != one and all(map(le, other, one)) for other in points) for one in points]
    assert is_pareto_front(points) == [not point for point in dominated]
