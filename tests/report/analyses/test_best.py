"""The best configurations, their ties and unmet constraints, against values computed by hand."""

from dataclasses import replace

import pytest
from sweeps import costing

from epochmeter.report.analyses.best import Criteria, find_best
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import costs, pareto_front

FOUR = group_repeats([
    costing(0, 10.0, 300.0, batch=64),  # 30 W
    costing(1, 10.8, 270.0, batch=32),  # 25 W
    costing(2, 15.0, 225.0, batch=16),  # 15 W
    costing(3, 20.0, 240.0, batch=8),  # 12 W
])  # fmt: skip


def pareto(configurations):
    return [each.job["batch"] for each in configurations if each in pareto_front(costs(configurations))]


def chosen(configurations, **criteria):
    return {
        choice.name: choice.configuration.job["batch"] for choice in find_best(configurations, Criteria(**criteria))
    }


def test_best_by_each_criterion():
    best = find_best(FOUR, Criteria(power_budget_w=20.0, deadline_s=11.0))
    # Max power is 30 W: costs are 150 + 150, 135 + 162, 112.5 + 225 and 120 + 300.
    assert [(choice.name, choice.configuration.job["batch"], choice.value, *choice.ties) for choice in best] == [
        ("fastest", 64, 10.0), ("least_energy", 16, 225.0), ("tradeoff", 32, pytest.approx(297.0)),
        ("within_slowdown", 32, 270.0), ("power_budget", 16, 15.0), ("deadline", 32, 270.0),
    ]  # fmt: skip
    unmet = find_best(FOUR, Criteria(power_budget_w=11.0, deadline_s=9.0))[4:]
    assert [(each.name, each.is_met, each.value) for each in unmet] == [
        ("power_budget", False, 12.0), ("deadline", False, 10.0),
    ]  # fmt: skip
    # At eta 0.3: 90 + 210, 81 + 226.8, ...; at 0.8: 240 + 60, 216 + 64.8, 180 + 90, 192 + 120.
    for eta, batch in {0.0: 64, 1.0: 16, 0.3: 64, 0.8: 16}.items():
        assert chosen(FOUR, eta=eta)["tradeoff"] == batch
    assert (pareto(FOUR), find_best([]), pareto([])) == ([64, 32, 16], [], [])


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


def test_energies_are_ranked_separately_by_the_parts_that_they_cover():
    timed = group_repeats([costing(0, 10.0), costing(1, 12.0, batch=128)])
    assert (chosen(timed, power_budget_w=9.0, deadline_s=9.0), pareto(timed)) == ({"fastest": 64}, [])
    mixed = group_repeats([costing(0, 5.0), costing(1, 10.0, 300.0, batch=128), costing(2, 12.0, 200.0, batch=256)])
    assert chosen(mixed) == {"fastest": 64, "least_energy": 256, "tradeoff": 256, "within_slowdown": 128}
    assert find_best(mixed)[-1].scope == "GPUs used"
    module = group_repeats([replace(FOUR[0].runs[0], energy_covers="module"), *(each.runs[0] for each in FOUR[1:])])
    names = ("least_energy", "tradeoff", "within_slowdown")
    assert [(each.name, each.configuration.job["batch"], each.scope) for each in find_best(module)] == [
        ("fastest", 64, None), *zip(names, (16, 32, 32), ["GPUs used"] * 3, strict=True),
        *zip(names, [64] * 3, ["module"] * 3, strict=True),
    ]  # fmt: skip
    assert pareto(module) == [64, 32, 16]
