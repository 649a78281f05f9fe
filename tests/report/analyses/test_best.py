"""Which point to choose: by hand, with ties told, and nothing where nothing can be told."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.best import find_best, pareto, unmet_constraints
from epochmeter.report.runs.configuration import group_repeats


def costing(number, time_s, energy_j=None, **keys):
    return trained(number, 100.0, steady={"e2e_s": time_s, "energy_j": energy_j}, **keys)


FOUR = group_repeats([
    costing(0, 10.0, 300.0, batch=64),  # 30 W
    costing(1, 10.8, 270.0, batch=32),  # 25 W
    costing(2, 15.0, 225.0, batch=16),  # 15 W
    costing(3, 20.0, 240.0, batch=8),  # 12 W
])  # fmt: skip


def chosen(found):
    return {choice.name: choice.point.job["batch"] for choice in found}


def by_name(found, name):
    (choice,) = [choice for choice in found if choice.name == name]
    return choice


def test_each_choice_is_the_best_by_hand():
    found = find_best(FOUR, power_budget_w=20.0, deadline_s=11.0)
    # Max power is 30 W: costs are 150 + 150, 135 + 162, 112.5 + 225 and 120 + 300.
    assert chosen(found) == {"fastest": 64, "least_energy": 16, "tradeoff": 32, "within_slowdown": 32,
                             "power_budget": 16, "deadline": 32}  # fmt: skip
    assert [choice.value for choice in found] == pytest.approx([10.0, 225.0, 297.0, 270.0, 15.0, 270.0])
    assert not any(choice.not_significantly_different for choice in found)


def test_each_choice_is_a_sentence_with_units():
    assert [choice.sentence for choice in find_best(FOUR, power_budget_w=20.0, deadline_s=11.0)] == [
        "Fastest: batch 64: 10.0 s an epoch, 300 J.",
        "Least energy: batch 16: 225 J an epoch, 15.0 s.",
        "Best trade-off: batch 32: 10.8 s and 270 J an epoch, the least 0.5 x energy + 0.5 x 30.0 W x time: 297 J. "
        "30.0 W is the largest mean power of an epoch, as no run tells the highest limit of the devices.",
        "Least energy within 1.1 times the fastest's time: batch 32: 270 J an epoch, 0.900 times the fastest's, in "
        "1.08 times its time.",
        "Fastest on 20 W or less in the mean of an epoch: batch 16: 15.0 s an epoch, 15.0 W.",
        "Least energy with an epoch in 11 s or less: batch 32: 270 J an epoch, 10.8 s.",
    ]


@pytest.mark.parametrize(("eta", "batch"), [(0.0, 64), (1.0, 16), (0.3, 64), (0.8, 16)])
def test_eta_weighs_energy_against_time(eta, batch):
    # At 0.3: 90 + 210, 81 + 226.8, ...; at 0.8: 240 + 60, 216 + 64.8, 180 + 90, 192 + 120.
    assert chosen(find_best(FOUR, eta=eta))["tradeoff"] == batch


@pytest.mark.parametrize(("max_slowdown", "batch"), [(1.0, 64), (1.07, 64), (1.08, 32), (1.5, 16), (9.0, 16)])
def test_a_slowdown_allows_for_less_energy(max_slowdown, batch):
    assert chosen(find_best(FOUR, max_slowdown=max_slowdown))["within_slowdown"] == batch


def test_the_fastest_may_be_the_one_within_the_slowdown():
    assert by_name(find_best(FOUR, max_slowdown=1.0), "within_slowdown").sentence == (
        "Least energy within 1 times the fastest's time: batch 64, the fastest itself: 300 J an epoch, 10.0 s."
    )


def test_a_bound_that_none_keeps_to_has_no_choice_and_says_why():
    assert {"power_budget", "deadline"}.isdisjoint(chosen(find_best(FOUR, power_budget_w=5.0, deadline_s=3.0)))
    assert unmet_constraints(FOUR, power_budget_w=5.0, deadline_s=3.0) == [
        "None keeps to 5 W: the least is 12.0 W, of batch 8.",
        "None ends an epoch within 3 s: the fastest takes 10.0 s, batch 64.",
    ]
    assert unmet_constraints(FOUR, power_budget_w=20.0, deadline_s=11.0) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"eta": 1.5}, "report.eta=1.5: give a share"),
        ({"eta": float("nan")}, "report.eta=nan"),
        ({"max_slowdown": 0.9}, "report.max_slowdown=0.9"),
        ({"power_budget_w": 0}, "report.power_budget=0: give watts above 0"),
        ({"deadline_s": -3.0}, "report.deadline=-3.0: give seconds above 0"),
    ],
)
def test_what_no_point_can_be_chosen_by_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        find_best(FOUR, **asked)


# Ties and repeats


def test_a_tie_in_time_is_won_by_less_energy_and_told():
    found = find_best(group_repeats([costing(0, 10.0, 300.0), costing(1, 10.0, 200.0, batch=128)]))
    fastest = by_name(found, "fastest")
    assert chosen(found)["fastest"] == 128
    assert [point.numbers for point in fastest.not_significantly_different] == [[0]]
    assert fastest.sentence.endswith("200 J. As good, as far as these runs tell: batch 64.")
    assert not by_name(found, "least_energy").not_significantly_different


def test_many_that_are_as_good_are_counted():
    found = find_best(group_repeats([costing(number, 10.0, batch=8 * (1 + number)) for number in range(6)]))
    assert found[0].sentence.endswith("As good, as far as these runs tell: batch 16; batch 24; batch 32; 2 more.")


def test_what_repeats_do_not_tell_apart_is_as_good():
    wide = [costing(number, 10.0 + number, repeat=number) for number in range(3)]
    near = [costing(3 + number, 10.5 + number, batch=128, repeat=number) for number in range(3)]
    far = [costing(6 + number, 30.0 + number, batch=256, repeat=number) for number in range(3)]
    (fastest,) = find_best(group_repeats([*wide, *near, *far]))
    assert fastest.point.numbers == [0, 1, 2]
    assert [point.numbers for point in fastest.not_significantly_different] == [[3, 4, 5]]
    assert fastest.sentence.startswith("Fastest: batch 64: 11.0 s (8.7 to 13.8) an epoch.")


def test_duplicates_of_a_job_are_one_point():
    (fastest,) = find_best(group_repeats([costing(0, 10.0), costing(1, 12.0)]))
    assert (fastest.value, fastest.point.numbers, fastest.not_significantly_different) == (11.0, [0, 1], [])


# What is missing


def test_a_point_alone_is_every_choice():
    assert set(chosen(find_best(FOUR[:1])).values()) == {64}
    assert pareto(FOUR[:1]) == FOUR[:1]


def test_without_points_there_is_no_choice():
    assert (find_best([]), pareto([]), unmet_constraints([])) == ([], [], [])


def test_without_energy_there_is_the_fastest_alone():
    timed = group_repeats([costing(0, 10.0), costing(1, 12.0, batch=128)])
    assert chosen(find_best(timed, power_budget_w=9.0, deadline_s=99.0)) == {"fastest": 64}
    assert unmet_constraints(timed, 9.0, 99.0) == ["No choice by energy: 2 of 2 runs measured none: no meter here."]
    assert pareto(timed) == []


def test_a_point_without_energy_may_be_the_fastest_and_no_more():
    found = group_repeats([costing(0, 5.0), costing(1, 10.0, 300.0, batch=128), costing(2, 12.0, 200.0, batch=256)])
    assert chosen(find_best(found)) == {"fastest": 64, "least_energy": 256, "tradeoff": 256, "within_slowdown": 128}
    assert unmet_constraints(found) == [
        "Not all energies can be put side by side: 1 of 3 runs measured none: no meter here."
    ]
    (within,) = (choice for choice in find_best(found) if choice.name == "within_slowdown")
    assert "within 1.1 times the fastest's time (of those with energy)" in within.sentence


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_absent(value):
    found = group_repeats(
        [costing(0, value, 1.0), costing(1, 10.0, value, batch=128), costing(2, 12.0, 9.0, batch=256)]
    )
    assert chosen(find_best(found))["fastest"] == 128
    assert chosen(find_best(found))["least_energy"] == 256
    assert unmet_constraints(found)[0] == "1 of 3 jobs have no time of a steady epoch, and no part in this."


def test_energies_of_different_things_are_chosen_from_apart_and_said():
    module = [replace(row, energy_covers="module") for point in FOUR[:1] for row in point.runs]
    found = group_repeats([*module, *(row for point in FOUR[1:] for row in point.runs)])
    told = [(choice.name, choice.point.job["batch"]) for choice in find_best(found)]
    assert told == [("fastest", 64), ("least_energy", 16), ("tradeoff", 32), ("within_slowdown", 32),
                    ("least_energy", 64), ("tradeoff", 64), ("within_slowdown", 64)]  # fmt: skip
    assert "Least energy (module): batch 64: 300 J" in find_best(found)[4].sentence
    assert unmet_constraints(found) == [
        "Not all energies can be put side by side: it covers different things: GPUs used, module."
    ]
    assert [point.job["batch"] for point in pareto(found)] == [64, 32, 16]


def test_the_front_is_what_none_betters():
    assert [point.job["batch"] for point in pareto(FOUR)] == [64, 32, 16]
