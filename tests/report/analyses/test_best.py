"""The best configurations, their ties and unmet constraints, against values computed by hand."""

from dataclasses import replace

import pytest
from sweeps import costing

from epochmeter.report.analyses import best
from epochmeter.report.analyses.best import Criteria
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import costs, pareto_front, ranked_costs

FOUR = group_repeats([
    costing(0, 10.0, 300.0, batch=64),  # 30 W
    costing(1, 10.8, 270.0, batch=32),  # 25 W
    costing(2, 15.0, 225.0, batch=16),  # 15 W
    costing(3, 20.0, 240.0, batch=8),  # 12 W
])  # fmt: skip


def find_best(configurations, *criteria):
    return best.find_best(ranked_costs(configurations), *criteria)


def pareto(configurations):
    return [each.job["batch"] for each in configurations if each in pareto_front(costs(configurations))]


def test_front_has_comparable_energies_and_eta_weights_energy():
    timed = group_repeats([costing(0, 10.0), costing(1, 12.0, batch=128)])
    module = group_repeats([replace(FOUR[0].runs[0], energy_covers="module"), *(each.runs[0] for each in FOUR[1:])])
    assert [*map(pareto, (FOUR, module, timed, []))] == [[64, 32, 16], [64, 32, 16], [], []]
    # At eta 0.3: 90 + 210, 81 + 226.8, ...; at 0.8: 240 + 60, 216 + 64.8, 180 + 90, 192 + 120.
    for eta, batch in {0.0: 64, 1.0: 16, 0.3: 64, 0.8: 16}.items():
        choice = find_best(FOUR, Criteria(eta=eta))[2]
        assert (choice.name, choice.configuration.job["batch"]) == ("tradeoff", batch)
    assert find_best([]) == []


def test_a_slowdown_allows_for_less_energy():
    for max_slowdown, batch in {1.07: 64, 1.08: 32, 1.5: 16}.items():
        for configurations in (FOUR, FOUR[::-1]):
            choice = find_best(configurations, Criteria(max_slowdown=max_slowdown))[3]
            assert (choice.name, choice.configuration.job["batch"]) == ("within_slowdown", batch)
            assert (choice.configuration is choice.fastest.configuration) == (batch == 64)


def ties(choice):
    return [(cost.configuration.numbers, excess) for cost, excess in choice.ties]


def test_ties_are_not_distinguished_by_repeats_and_are_ranked_by_energy():
    fastest, least, *_ = find_best(group_repeats([costing(0, 10.0, 300.0), costing(1, 10.0, 200.0, batch=128)]))
    assert (fastest.configuration.numbers, ties(fastest), ties(least)) == ([1], [([0], 0.0)], [])
    times = [(10.0, 64), (10.5, 128), (30.0, 256)]
    runs = [costing(3 * m + n, time_s + n, batch=batch, repeat=n)
            for m, (time_s, batch) in enumerate(times) for n in range(3)]  # fmt: skip
    (fastest,) = find_best(group_repeats(runs))
    assert (fastest.configuration.numbers, ties(fastest)) == ([0, 1, 2], [([3, 4, 5], pytest.approx(11.5 / 11 - 1))])
