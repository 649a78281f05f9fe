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
    return [each for each in configurations if each in pareto_front(costs(configurations))]


def chosen(found):
    return {choice.name: choice.configuration.job["batch"] for choice in found}


def by_name(found, name):
    return next(choice for choice in found if choice.name == name)


def test_best_by_each_criterion():
    found = find_best(FOUR, Criteria(power_budget_w=20.0, deadline_s=11.0))
    # Max power is 30 W: costs are 150 + 150, 135 + 162, 112.5 + 225 and 120 + 300.
    assert chosen(found) == {"fastest": 64, "least_energy": 16, "tradeoff": 32, "within_slowdown": 32,
                             "power_budget": 16, "deadline": 32}  # fmt: skip
    assert [choice.value for choice in found] == pytest.approx([10.0, 225.0, 297.0, 270.0, 15.0, 270.0])
    assert not any(choice.ties for choice in found)


@pytest.mark.parametrize(("eta", "batch"), [(0.0, 64), (1.0, 16), (0.3, 64), (0.8, 16)])
def test_eta_weighs_energy_against_time(eta, batch):
    # At 0.3: 90 + 210, 81 + 226.8, ...; at 0.8: 240 + 60, 216 + 64.8, 180 + 90, 192 + 120.
    assert chosen(find_best(FOUR, Criteria(eta=eta)))["tradeoff"] == batch


@pytest.mark.parametrize(("max_slowdown", "batch"), [(1.07, 64), (1.08, 32), (1.5, 16)])
def test_a_slowdown_allows_for_less_energy(max_slowdown, batch):
    for configurations in (FOUR, FOUR[::-1]):
        choice = by_name(find_best(configurations, Criteria(max_slowdown=max_slowdown)), "within_slowdown")
        assert choice.configuration.job["batch"] == batch
        assert (choice.configuration is choice.fastest.configuration) == (batch == 64)


def test_equal_times_are_ranked_by_energy():
    found = find_best(group_repeats([costing(0, 10.0, 300.0), costing(1, 10.0, 200.0, batch=128)]))
    fastest = by_name(found, "fastest")
    assert chosen(found)["fastest"] == 128
    assert [(cost.configuration.numbers, excess) for cost, excess in fastest.ties] == [([0], 0.0)]
    assert not by_name(found, "least_energy").ties


def test_ties_are_what_repeats_do_not_distinguish():
    times = [(10.0, 64), (10.5, 128), (30.0, 256)]
    runs = [costing(3 * m + n, time_s + n, batch=batch, repeat=n)
            for m, (time_s, batch) in enumerate(times) for n in range(3)]  # fmt: skip
    (fastest,) = find_best(group_repeats(runs))
    assert fastest.configuration.numbers == [0, 1, 2]
    assert [(cost.configuration.numbers, excess) for cost, excess in fastest.ties] == [
        ([3, 4, 5], pytest.approx(11.5 / 11 - 1))
    ]


def test_pareto_front():
    assert [point.job["batch"] for point in pareto(FOUR)] == [64, 32, 16]
    assert (find_best([]), pareto([])) == ([], [])


def test_configurations_without_energy_may_be_the_fastest_only():
    timed = group_repeats([costing(0, 10.0), costing(1, 12.0, batch=128)])
    assert chosen(find_best(timed, Criteria(power_budget_w=9.0, deadline_s=99.0))) == {"fastest": 64}
    assert pareto(timed) == []
    found = group_repeats([costing(0, 5.0), costing(1, 10.0, 300.0, batch=128), costing(2, 12.0, 200.0, batch=256)])
    assert chosen(find_best(found)) == {"fastest": 64, "least_energy": 256, "tradeoff": 256, "within_slowdown": 128}
    assert by_name(find_best(found), "within_slowdown").scope == "GPUs used"


def test_energies_of_different_parts_are_ranked_separately():
    module = [replace(row, energy_covers="module") for point in FOUR[:1] for row in point.runs]
    found = group_repeats([*module, *(row for point in FOUR[1:] for row in point.runs)])
    chosen = [(choice.name, choice.configuration.job["batch"]) for choice in find_best(found)]
    assert chosen == [("fastest", 64), ("least_energy", 16), ("tradeoff", 32), ("within_slowdown", 32),
                    ("least_energy", 64), ("tradeoff", 64), ("within_slowdown", 64)]  # fmt: skip
    assert [choice.scope for choice in find_best(found)] == [None, *["GPUs used"] * 3, *["module"] * 3]
    assert [point.job["batch"] for point in pareto(found)] == [64, 32, 16]
