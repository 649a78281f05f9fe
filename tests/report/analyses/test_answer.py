"""The answer in words: from choices to sentences, and nothing of what is not known."""

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


def told(*runs, **more):
    found = group_repeats(list(runs))
    return page(found, find_best(found), epoch_breakdowns(found), notes=unmet_constraints(found), **more)


def said(found):
    first, *others = ([*section.sentences] for section in found.sections)
    return [[*found.summary, *first], *others]


def test_the_answer_stands_first_then_what_bounds_it():
    found = told(run(0, 10.0, 300.0, stall=0.8), run(1, 12.0, 200.0, batch=32), run(2, 15.0, 250.0, batch=16))
    assert (found.name, found.title, found.numbers) == ("answer", "The answer", [0, 1, 2])
    answer, bound = said(found)
    assert answer[:3] == [
        "Fastest: batch 64: 10.0 s per epoch, 300 J.",
        "Least energy: batch 32: 200 J per epoch, 12.0 s.",
        "Best trade-off: batch 32: 12.0 s and 200 J per epoch, the minimum of 0.5 x energy + 0.5 x 30.0 W x time: "
        "280 J. 30.0 W is the largest mean power of an epoch, as no run recorded the highest limit of the devices.",
    ]
    assert "Energy is that of: GPUs used." in answer
    assert bound == ["Bottlenecks of 3 configurations: 2 compute-bound, 1 prep-bound."]


def test_the_tables_hold_the_numbers():
    found = told(run(0, 10.0, 300.0, stall=0.8), run(1, 12.0, 200.0, batch=32))
    (best,), (shares,) = (section.grids for section in found.sections)
    assert best.rows == [
        ["batch 64", "0", "10.0", "300", "30.0", "prep-bound", "time; energy within the slowdown"],
        ["batch 32", "1", "12.0", "200", "16.7", "compute-bound; 10 % prep stall", "energy; trade-off"],
    ]
    assert shares.columns == ["job", "compute", "prep stall", "fetch stall", "copy", "overhead"]
    assert shares.rows == [
        ["batch 64", "10.0", "80.0", "0.0", "0.0", "10.0"],
        ["batch 32", "80.0", "10.0", "0.0", "0.0", "10.0"],
    ]


def test_one_that_is_the_best_in_all_is_said_once():
    answer = said(told(run(0, 10.0, 100.0), run(1, 12.0, 200.0, batch=32)))[0]
    assert answer[0] == "batch 64 is the best by every criterion: 10.0 s per epoch, 100 J."
    assert not any("Fastest" in text for text in answer)


def test_one_that_another_is_as_good_as_is_not_the_best_in_all():
    near = [run(n, 10.0 + n / 10, 100.0 + 30 * n, repeat=n) for n in range(3)]
    less = [run(3 + n, 12.0 + n / 10, 135.0 + 30 * n, batch=32, repeat=n) for n in range(3)]
    answer = said(told(*near, *less))[0]
    assert answer[0].startswith("Fastest: batch 64: 10.1 s")
    assert "Not significantly different: batch 32 (+" in answer[1]


def test_while_a_bound_is_unmet_none_is_the_best_by_all_that_was_asked():
    found = group_repeats([run(0, 10.0, 100.0), run(1, 12.0, 200.0, batch=32)])
    best = find_best(found, deadline_s=1.0)
    answer = said(page(found, best, epoch_breakdowns(found), notes=unmet_constraints(found, deadline_s=1.0)))[0]
    assert answer[0] == "Fastest: batch 64: 10.0 s per epoch, 100 J."
    assert "No configuration needs 1 s or less per epoch: the fastest needs 10.0 s, batch 64." in answer


def test_a_job_alone_is_chosen_from_nothing():
    answer, bound = said(told(run(0, 10.0, 100.0)))
    assert answer == ["One job alone, and nothing to choose between: resnet152, batch 64: 10.0 s per epoch, 100 J."]
    assert bound == ["Bottleneck: compute-bound; 10 % prep stall."]


def test_without_energy_time_is_told_and_why_there_is_no_more():
    answer = said(told(run(0, 10.0), run(1, 12.0, batch=32)))[0]
    assert answer[:2] == ["Fastest: batch 64: 10.0 s per epoch.",
                          "No result for energy: 2 of 2 runs measured none: no meter here."]  # fmt: skip


@pytest.mark.parametrize("runs", [[], [run(0, None)], [run(0, float("nan"))]])
def test_without_a_time_there_is_no_answer(runs):
    assert told(*runs) is None


def test_what_to_try_is_told_with_its_reason_and_why_nothing_is_predicted():
    found = told(
        run(0, 10.0),
        run(1, 12.0, batch=32),
        suggestions=[Suggestion("python src/train.py batch=128", "the fastest computes")],
        prediction="too few",
    )
    assert said(found)[2:] == [
        ["What to try next:", "The fastest computes: python src/train.py batch=128"],
        ["No prediction: too few."],
    ]


def test_numbers_are_plain_for_machines():
    found = told(run(0, 10.0, 300.0), run(1, 12.0, 200.0, batch=32))
    values = json.loads(json.dumps(found.values, allow_nan=False))
    assert values["choices"][0] == {
        "name": "fastest", "job": "batch 64", "runs": [0], "value": 10.0, "time_s": 10.0, "energy_j": 300.0,
        "power_w": 30.0, "energy_covers": "GPUs used", "bottleneck": "compute-bound; 10 % prep stall",
        "fractions": pytest.approx({"compute": 0.8, "prep_stall": 0.1, "fetch_stall": 0, "copy": 0, "overhead": 0.1}),
        "not_significantly_different": [], "sentence": "Fastest: batch 64: 10.0 s per epoch, 300 J.",
    }  # fmt: skip
    assert values["bottlenecks"] == {"compute-bound": 2}
    assert values["prediction"] is None


# What to keep in mind


def test_epochs_of_other_work_are_told():
    few = run(1, 10.0, batch=32)
    many = replace(few, number=2, job={**few.job, "batch": 8}, metrics={**few.metrics, "steady/samples": 50000.0})
    assert caveats(group_repeats([few, many]))[0] == (
        "An epoch is not as much work in all of them: it has 1000 to 50000 samples."
    )


def test_what_changes_how_a_job_learns_is_told_unless_there_is_a_target():
    runs = [run(0, 10.0), run(1, 10.0, batch=32)]
    assert any("may depend on batch" in text for text in caveats(group_repeats(runs)))
    targeted = [run(number, 10.0, batch=8 * (1 + number), target_accuracy=0.5) for number in range(2)]
    assert not any("epochs are needed" in text for text in caveats(group_repeats(targeted)))


def test_what_ran_once_is_told_and_repeats_end_that():
    runs = [run(0, 10.0), run(1, 10.0, workers=8)]
    assert caveats(group_repeats(runs)) == [
        f"Each job ran once, so small differences may be chance: {RECOMMENDED_REPEATS} gives intervals."
    ]
    assert caveats(group_repeats([*runs, run(2, 10.0, repeat=1)])) == [
        f"1 of 2 jobs ran once, so small differences may be chance: {RECOMMENDED_REPEATS} gives intervals."
    ]
    assert caveats(group_repeats([*runs, run(2, 10.0, repeat=1), run(3, 10.0, repeat=1, workers=8)])) == []
    assert caveats(group_repeats(runs[:1])) == []


def test_repeats_that_went_to_several_hosts_are_said_to_be_none():
    runs = [replace(run(n, 10.0, repeat=n), host=f"board{n}") for n in range(3)]
    (text,) = caveats(group_repeats(runs))
    assert text.startswith("Each job ran once on its host, so that small differences may be chance. Equal jobs on ")
    assert "where all go to one, which hydra.launcher.options='{nodelist: ...}' names." in text
    again = [replace(run(3 + n, 10.0, repeat=3), host=f"board{n}") for n in range(2)]
    assert caveats(group_repeats([*runs, *again]))[0].startswith("1 of 3 jobs ran once on its host")
