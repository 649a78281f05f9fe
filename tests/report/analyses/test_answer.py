"""The top of a report: sentences, tables and values, from the best configurations."""

import json
from dataclasses import replace

import pytest
from sweeps import trained

from epochmeter.report.analyses.answer import caveats, page
from epochmeter.report.analyses.best import find_best, unmet_constraints
from epochmeter.report.analyses.epoch_breakdown import epoch_breakdowns
from epochmeter.report.analyses.next_runs import Suggestion
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS


def run(number, time_s, energy_j=None, *, stall=0.1, **keys):
    parts = {"compute_s": None, "data_stall_s": None}
    if time_s:
        parts = {"compute_s": (0.9 - stall) * time_s, "data_stall_s": stall * time_s, "overhead_s": 0.1 * time_s,
                 "copy_s": 0.0, "loader_read_s": 0.0, "loader_preprocess_s": 1.0, "loader_decode_s": 0.5}  # fmt: skip
    return trained(number, 100.0, steady={"e2e_s": time_s, "energy_j": energy_j, **parts}, **keys)


def answer_page(*runs, **more):
    configurations = group_repeats(list(runs))
    best, breakdowns = find_best(configurations), epoch_breakdowns(configurations)
    return page(configurations, best, breakdowns, notes=unmet_constraints(configurations), **more)


def texts_of(page):
    first, *others = ([*section.sentences] for section in page.sections)
    return [[*page.summary, *first], *others]


def test_best_configurations_come_before_bottlenecks():
    result = answer_page(run(0, 10.0, 300.0, stall=0.8), run(1, 12.0, 200.0, batch=32), run(2, 15.0, 250.0, batch=16))
    assert (result.name, result.title, result.numbers) == ("answer", "The answer", [0, 1, 2])
    answer, bound = texts_of(result)
    assert answer[:3] == [
        "Fastest: batch 64: 10.0 s per epoch, 300 J.",
        "Least energy: batch 32: 200 J per epoch, 12.0 s.",
        "Best trade-off: batch 32: 12.0 s and 200 J per epoch, the minimum of 0.5 x energy + 0.5 x 30.0 W x time: "
        "280 J. 30.0 W is the largest mean power of an epoch, as no run recorded the highest limit of the devices.",
    ]
    assert "Energy: GPUs used." in answer
    assert bound == ["Bottlenecks of 3 configurations: 2 compute-bound, 1 prep-bound."]


def test_tables_have_best_configurations_and_epoch_parts():
    result = answer_page(run(0, 10.0, 300.0, stall=0.8), run(1, 12.0, 200.0, batch=32))
    (best,), (shares,) = (section.grids for section in result.sections)
    assert best.rows == [
        ["batch 64", "0", "10.0 s", "300 J", "30.0 W", "prep-bound", "time; energy within the slowdown"],
        ["batch 32", "1", "12.0 s", "200 J", "16.7 W", "compute-bound; 10 % prep stall", "energy; trade-off"],
    ]
    assert shares.columns == ["configuration", "compute", "prep stall", "fetch stall", "copy", "overhead"]
    assert shares.rows == [
        ["batch 64", "10.0", "80.0", "0.0", "0.0", "10.0"],
        ["batch 32", "80.0", "10.0", "0.0", "0.0", "10.0"],
    ]


def test_best_by_every_criterion_is_one_sentence():
    answer = texts_of(answer_page(run(0, 10.0, 100.0), run(1, 12.0, 200.0, batch=32)))[0]
    assert answer[0] == "batch 64 is the best by every criterion: 10.0 s per epoch, 100 J."
    assert not any("Fastest" in text for text in answer)


def test_tie_is_not_best_by_every_criterion():
    near = [run(n, 10.0 + n / 10, 100.0 + 30 * n, repeat=n) for n in range(3)]
    less = [run(3 + n, 12.0 + n / 10, 135.0 + 30 * n, batch=32, repeat=n) for n in range(3)]
    answer = texts_of(answer_page(*near, *less))[0]
    assert answer[0].startswith("Fastest: batch 64: 10.1 s")
    assert "Not significantly different: batch 32 (+" in answer[1]


def test_unmet_constraint_prevents_best_by_every_criterion():
    result = group_repeats([run(0, 10.0, 100.0), run(1, 12.0, 200.0, batch=32)])
    best = find_best(result, deadline_s=1.0)
    answer = texts_of(page(result, best, epoch_breakdowns(result), notes=unmet_constraints(result, deadline_s=1.0)))[0]
    assert answer[0] == "Fastest: batch 64: 10.0 s per epoch, 100 J."
    assert "No configuration needs 1 s or less per epoch: the fastest needs 10.0 s, batch 64." in answer


def test_single_configuration_is_not_ranked():
    answer, bound = texts_of(answer_page(run(0, 10.0, 100.0)))
    assert answer == ["Only one configuration: resnet152, batch 64: 10.0 s per epoch, 100 J."]
    assert bound == ["Bottleneck: compute-bound; 10 % prep stall."]


def test_without_energy_there_is_time_and_the_reason():
    answer = texts_of(answer_page(run(0, 10.0), run(1, 12.0, batch=32)))[0]
    assert answer[:2] == ["Fastest: batch 64: 10.0 s per epoch.",
                          "No result for energy: 2 of 2 runs measured none: no meter here."]  # fmt: skip


@pytest.mark.parametrize("runs", [[], [run(0, None)], [run(0, float("nan"))]])
def test_without_time_there_is_no_page(runs):
    assert answer_page(*runs) is None


def test_suggestion_has_its_reason_and_missing_prediction_too():
    result = answer_page(
        run(0, 10.0),
        run(1, 12.0, batch=32),
        suggestions=[Suggestion("python src/train.py batch=128", "the fastest computes")],
        prediction="too few",
    )
    assert texts_of(result)[2:] == [
        ["What to try next:", "The fastest computes: python src/train.py batch=128"],
        ["No prediction: too few."],
    ]


def test_values_are_plain_json():
    result = answer_page(run(0, 10.0, 300.0), run(1, 12.0, 200.0, batch=32))
    values = json.loads(json.dumps(result.values, allow_nan=False))
    assert values["choices"][0] == {
        "name": "fastest", "job": "batch 64", "runs": [0], "value": 10.0, "time_s": 10.0, "energy_j": 300.0,
        "power_w": 30.0, "energy_covers": "GPUs used", "bottleneck": "compute-bound; 10 % prep stall",
        "fractions": pytest.approx({"compute": 0.8, "prep_stall": 0.1, "fetch_stall": 0, "copy": 0, "overhead": 0.1}),
        "not_significantly_different": [], "sentence": "Fastest: batch 64: 10.0 s per epoch, 300 J.",
    }  # fmt: skip
    assert values["bottlenecks"] == {"compute-bound": 2}
    assert values["prediction"] is None


# Caveats


def test_different_numbers_of_samples_are_a_caveat():
    few = run(1, 10.0, batch=32)
    many = replace(few, number=2, job={**few.job, "batch": 8}, metrics={**few.metrics, "steady/samples": 50000.0})
    assert "1000 to 50000" in caveats(group_repeats([few, many]))[0]


def test_keys_that_affect_convergence_are_a_caveat_without_target():
    runs = [run(0, 10.0), run(1, 10.0, batch=32)]
    assert any("may depend on batch" in text for text in caveats(group_repeats(runs)))
    targeted = [run(number, 10.0, batch=8 * (1 + number), target_accuracy=0.5) for number in range(2)]
    assert not any("epochs are needed" in text for text in caveats(group_repeats(targeted)))


def test_single_runs_are_a_caveat_until_repeated():
    runs = [run(0, 10.0), run(1, 10.0, workers=8)]
    (text,) = caveats(group_repeats(runs))
    assert text.startswith("Each configuration ran once")
    assert RECOMMENDED_REPEATS in text
    (text,) = caveats(group_repeats([*runs, run(2, 10.0, repeat=1)]))
    assert text.startswith("1 of 2 configurations ran once")
    assert RECOMMENDED_REPEATS in text
    assert caveats(group_repeats([*runs, run(2, 10.0, repeat=1), run(3, 10.0, repeat=1, workers=8)])) == []
    assert caveats(group_repeats(runs[:1])) == []


def test_runs_on_several_hosts_are_not_repeats():
    runs = [replace(run(n, 10.0, repeat=n), host=f"board{n}") for n in range(3)]
    (text,) = caveats(group_repeats(runs))
    assert text.startswith("Each configuration ran once on its host")
    assert "hydra.launcher.options='{nodelist: ...}'" in text
    again = [replace(run(3 + n, 10.0, repeat=3), host=f"board{n}") for n in range(2)]
    assert caveats(group_repeats([*runs, *again]))[0].startswith("1 of 3 configurations ran once on its host")
