"""The Pareto front of a search."""

from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.search_front import analyze, grid, page, search_objectives, sentences
from epochmeter.shared.atomic_files import write_json

OBJECTIVES = ["steady/energy_j", "steady/e2e_s"]


def run(number, batch, energy_j, e2e_s, **more):
    return trained(number, 100.0, batch=batch, steady={"energy_j": energy_j, "e2e_s": e2e_s}, **more)


ROWS = [run(0, 8, 300.0, 10.0), run(1, 16, 200.0, 12.0), run(2, 32, 250.0, 11.0), run(3, 64, 310.0, 12.0)]


def test_front_is_sorted_by_the_first_objective():
    told = analyze(ROWS, OBJECTIVES)
    assert [point.title for point in told.front] == ["batch 16", "batch 32", "batch 8"]
    assert [point.title for point in told.others] == ["batch 64"]
    assert sentences(told) == [
        "3 of 4 configurations are on the Pareto front of steady/energy_j and steady/e2e_s: none is better in all.",
        "No intervals, as each configuration ran once: -m sweep.repeats=3 sweep.order=random with these configurations "
        "gives them.",
    ]
    assert grid(told).rows[0] == ["batch 16", "1", "200", "12.0"]


def test_best_in_all_objectives_has_its_values():
    told = analyze([*ROWS, run(4, 128, 100.0, 9.0)], OBJECTIVES)
    assert sentences(told)[0] == "batch 128 is the best of 5 configurations: steady/energy_j 100, steady/e2e_s 9.00."


def test_objective_to_maximize():
    told = analyze([trained(0, 100.0), trained(1, 300.0, batch=128)], ["steady/samples_per_s"])
    assert [point.title for point in told.front] == ["batch 128"]


def test_repeats_are_averaged():
    told = analyze([*ROWS, run(4, 16, 400.0, 12.0, repeat=1)], OBJECTIVES)
    assert [point.title for point in told.front] == ["batch 32", "batch 8"]
    assert analyze([*ROWS[:1], run(1, 8, 310.0, 10.0, repeat=1)], OBJECTIVES).front[0].numbers == [0, 1]


def test_run_without_an_objective_is_excluded():
    told = analyze([*ROWS, run(4, 128, None, 5.0)], OBJECTIVES)
    assert [point.numbers for point in told.incomplete] == [[4]]
    assert "Excluded, without a value of some objective: runs 4." in sentences(told)


def test_without_energy_the_front_is_that_of_time():
    told = analyze([run(0, 8, None, 10.0), run(1, 16, None, 12.0)], OBJECTIVES)
    assert told.objectives == ["steady/e2e_s"]
    assert [point.title for point in told.front] == ["batch 8"]


def test_energies_of_different_parts_have_no_front():
    told = analyze([ROWS[0], replace(ROWS[1], energy_covers="module")], OBJECTIVES)
    assert told.front == []
    assert sentences(told)[0].startswith("No front of steady/energy_j and steady/e2e_s: it covers different things")


@pytest.mark.parametrize("objectives", [[], ["total/edp_js"]])
def test_missing_objectives_have_no_result(objectives):
    assert analyze(ROWS, objectives) is None


def test_only_a_search_has_a_page(tmp_path):
    assert page(ROWS, tmp_path) is None
    write_json(tmp_path / "search.json", {"objectives": OBJECTIVES})
    told = page(ROWS, tmp_path)
    assert (told.name, told.numbers) == ("front", [0, 1, 2, 3])
    (tmp_path / "search.json").write_text("[")
    assert search_objectives(tmp_path) == []
