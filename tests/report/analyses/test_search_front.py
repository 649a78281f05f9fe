"""What a search found: the front of its points by what it was for, and what has no place on it."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.search_front import grid, page, searched, sentences, sought
from epochmeter.shared.atomic_files import write_json

OBJECTIVES = ["steady/energy_j", "steady/e2e_s"]


def run(number, batch, energy_j, e2e_s, **more):
    return trained(number, 100.0, batch=batch, steady={"energy_j": energy_j, "e2e_s": e2e_s}, **more)


ROWS = [run(0, 8, 300.0, 10.0), run(1, 16, 200.0, 12.0), run(2, 32, 250.0, 11.0), run(3, 64, 310.0, 12.0)]


def test_the_front_is_the_points_that_none_other_betters_by_the_first_objective():
    told = searched(ROWS, OBJECTIVES)
    assert [point.title for point in told.front] == ["batch 16", "batch 32", "batch 8"]
    assert [point.title for point in told.others] == ["batch 64"]
    assert sentences(told) == [
        "3 of 4 points are on the Pareto front of steady/energy_j and steady/e2e_s: none is better in all.",
        "No intervals, as each point was measured once: -m sweep.repeats=3 sweep.order=random with these points gives "
        "them.",
    ]
    assert grid(told).rows[0] == ["batch 16", "1", "200", "12.0"]


def test_what_is_best_in_all_is_said_with_its_values():
    told = searched([*ROWS, run(4, 128, 100.0, 9.0)], OBJECTIVES)
    assert sentences(told)[0] == "batch 128 is the best of 5 points: steady/energy_j 100, steady/e2e_s 9.00."


def test_of_what_is_better_the_more_of_it_there_is_the_most_is_best():
    told = searched([trained(0, 100.0), trained(1, 300.0, batch=128)], ["steady/samples_per_s"])
    assert [point.title for point in told.front] == ["batch 128"]


def test_repeats_are_one_point_by_their_mean():
    told = searched([*ROWS, run(4, 16, 400.0, 12.0, repeat=1)], OBJECTIVES)
    assert [point.title for point in told.front] == ["batch 32", "batch 8"]
    assert searched([*ROWS[:1], run(1, 8, 310.0, 10.0, repeat=1)], OBJECTIVES).front[0].numbers == [0, 1]


def test_a_run_without_an_objective_is_named_and_left_out():
    told = searched([*ROWS, run(4, 128, None, 5.0)], OBJECTIVES)
    assert [point.numbers for point in told.lacking] == [[4]]
    assert "Left out, as they lack a value of these: runs 4." in sentences(told)


def test_without_any_energy_the_front_is_that_of_time():
    told = searched([run(0, 8, None, 10.0), run(1, 16, None, 12.0)], OBJECTIVES)
    assert told.objectives == ["steady/e2e_s"]
    assert [point.title for point in told.front] == ["batch 8"]


def test_energies_that_cover_different_things_have_no_front():
    told = searched([ROWS[0], replace(ROWS[1], energy_covers="module")], OBJECTIVES)
    assert told.front == []
    assert sentences(told)[0].startswith("No front of steady/energy_j and steady/e2e_s: it covers different things")


@pytest.mark.parametrize("objectives", [[], ["total/edp_js"]])
def test_of_what_no_run_has_nothing_is_told(objectives):
    assert searched(ROWS, objectives) is None


def test_a_page_is_told_of_a_folder_that_was_searched_alone(tmp_path):
    assert page(ROWS, tmp_path) is None
    write_json(tmp_path / "search.json", {"objectives": OBJECTIVES})
    told = page(ROWS, tmp_path)
    assert (told.name, told.numbers) == ("front", [0, 1, 2, 3])
    (tmp_path / "search.json").write_text("[")
    assert sought(tmp_path) == []
