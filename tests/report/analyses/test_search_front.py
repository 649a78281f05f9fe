"""The Pareto front of a search."""

from dataclasses import replace

from golden import assert_golden
from sweeps import costing, trained

from epochmeter.report.analyses.search_front import analyze, search_objectives
from epochmeter.shared.atomic_files import write_json

OBJECTIVES = ["steady/energy_j", "steady/e2e_s"]


def run(number, batch, energy_j, e2e_s, **more):
    return costing(number, e2e_s, energy_j, batch=batch, **more)


ROWS = [run(0, 8, 300.0, 10.0), run(1, 16, 200.0, 12.0), run(2, 32, 250.0, 11.0), run(3, 64, 310.0, 12.0)]


CASES = {
    "": ([*ROWS, run(5, 256, None, 5.0)], OBJECTIVES),
    "one_best": ([*ROWS, run(4, 128, 100.0, 9.0)], OBJECTIVES),
    "no_front": ([ROWS[0], replace(ROWS[1], energy_covers="module")], OBJECTIVES),
    "same_best": ([run(0, 8, None, 10.0), run(1, 16, None, 10.0), run(2, 32, None, 11.0)], ["steady/e2e_s"]),
    "means": ([*ROWS, run(4, 16, 400.0, 12.0, repeat=1)], OBJECTIVES),
    "to_maximize": ([trained(0, 100.0), trained(1, 300.0, batch=128)], ["steady/samples_per_s"]),
    "unmeasured_energy": ([run(0, 8, None, 10.0), run(1, 16, None, 12.0)], OBJECTIVES),
}


def test_text_of_the_front_of_means_and_measured_objectives():
    for case, (runs, objectives) in CASES.items():
        assert_golden("front", analyze(runs, objectives), case)
    assert analyze(CASES["means"][0], OBJECTIVES).others[0].numbers == [1, 4]
    edp = [replace(each, metrics={**each.metrics, "total/edp_js": 9.0}, energy_covers=covers)
           for each, covers in zip(ROWS, ("gpu0", "module"), strict=False)]  # fmt: skip
    assert analyze(edp, ["total/edp_js"]).no_front.covers == ("gpu0", "module")
    assert analyze(edp, ["steady/e2e_s"]).no_front is None
    assert analyze(ROWS, []) is analyze(ROWS, ["total/edp_js"]) is None


def test_only_a_search_has_objectives(tmp_path):
    assert search_objectives(tmp_path) == []
    write_json(tmp_path / "search.json", {"objectives": OBJECTIVES})
    assert search_objectives(tmp_path) == OBJECTIVES
    (tmp_path / "search.json").write_text("[")
    assert search_objectives(tmp_path) == []
