"""Pareto fronts."""

import random
from operator import le

from epochmeter.results.pareto import is_pareto_front


def test_front_equals_its_definition_on_random_points():
    drawn = random.Random(5)
    points = [(drawn.randrange(30), drawn.randrange(30)) for _ in range(200)]
    dominated = [any(other != one and all(map(le, other, one)) for other in points) for one in points]
    assert is_pareto_front(points) == [not point for point in dominated]
