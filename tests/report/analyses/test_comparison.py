"""Two sweeps beside each other: what differs, and when nothing can be told."""

from dataclasses import replace
from math import log

import pytest
from scipy.stats import ttest_1samp, ttest_ind
from sweeps import trained

from epochmeter.report.analyses.comparison import compare, page, sentence, sentences
from epochmeter.report.runs.configuration import group_repeats

CPU, ORIN = {"name": "cpu", "rails": None}, {"name": "agx_orin", "rails": {"total": ["VDD_IN"]}}


def run(number, time_s, energy_j=None, epochs=(), **keys):
    told = [{"epoch/e2e_s": seconds} for seconds in epochs]
    return trained(number, 100.0, steady={"e2e_s": time_s, "energy_j": energy_j}, epochs=told, **keys)


def repeated(times, first=0, **keys):
    return [run(first + number, time_s, repeat=number, **keys) for number, time_s in enumerate(times)]


def told(before, after):
    return compare(group_repeats(before), group_repeats(after))


def one(before, after):
    (found,) = told(before, after)
    return found


@pytest.mark.parametrize(("before", "after"), [([], []), ([run(0, 1.0)], []), ([], [run(0, 1.0)])])
def test_without_runs_there_is_nothing_to_compare(before, after):
    assert told(before, after) == []
    assert "nothing to compare" in page(group_repeats(before), group_repeats(after)).sections[0].sentences[0]


def test_repeats_give_welchs_interval_of_the_logarithms():
    found = one(repeated([10.0, 10.1, 10.2]), repeated([8.0, 8.1, 8.3]))
    known = ttest_ind([log(x) for x in (8.0, 8.1, 8.3)], [log(x) for x in (10.0, 10.1, 10.2)], equal_var=False)
    interval = known.confidence_interval()
    assert (log(found.ratio.low), log(found.ratio.high)) == pytest.approx((interval.low, interval.high))
    assert (found.by, found.verdict, found.same) == ("runs", "differs", False)
    assert (found.before, found.after) == pytest.approx((10.1, 24.4 / 3))
    assert sentence(found) == "resnet152, batch 64: 0.805 times (0.775 to 0.837) the time."


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ([10.0, 10.1, 10.2], "no difference"),
        ([10.01, 10.1, 10.22], "no difference"),
        ([8.0, 10.1, 12.0], "cannot tell"),
        ([9.0, 9.1, 9.2], "differs"),
    ],
)
def test_the_interval_decides(after, verdict):
    found = one(repeated([10.0, 10.1, 10.2]), repeated(after))
    assert (found.verdict, found.same) == (verdict, verdict == "no difference")


def test_the_same_runs_do_not_differ():
    found = one(repeated([10.0, 10.0]), repeated([10.0, 10.0]))
    assert (found.ratio.value, found.ratio.low, found.ratio.high, found.same) == (1.0, 1.0, 1.0, True)


def test_of_one_run_its_epochs_after_the_warm_up_give_the_interval_and_no_verdict():
    found = told([run(0, 10.0, epochs=[50.0, 10.0, 10.1, 9.9])], [run(0, 8.0, epochs=[40.0, 8.0, 8.1, 7.9])])
    assert found[0].by == "epochs"
    assert found[0].ratio.high < 0.9, "were these runs, they would differ"
    assert found[0].verdict == "cannot tell"
    assert found[0].ratio.value == pytest.approx(0.8, rel=1e-3)
    assert "covers its epochs, not other runs" in sentences(found)[-1]


def test_a_job_that_ran_once_beside_repeats_is_told_by_both_and_judged_by_neither():
    found = told(repeated([10.0, 10.1, 10.2]), [run(0, 8.0, epochs=[40.0, 8.0, 8.1, 7.9, 8.0])])
    assert (found[0].by, found[0].counts, found[0].verdict) == ("runs and epochs", (3, 4), "cannot tell")
    assert "Not all ran as often: the intervals are of 3 to 4 runs or epochs, and of fewer they are wider." in (
        sentences(found)
    )


def test_what_did_not_run_as_often_is_said():
    found = told(repeated([10.0, 10.1, 10.2]), repeated([8.0, 8.1]))
    assert found[0].interval_of == "3 and 2 runs"
    assert sentences(found)[-1].startswith("Not all ran as often: the intervals are of 2 to 3 runs or epochs")


def test_one_of_many_that_seems_to_differ_is_held_to_all_of_them():
    """One p-value of 0.03 among twenty is what chance alone brings."""
    before = [each for n in range(20) for each in repeated([10.0, 10.1, 10.2], 3 * n, batch=8 * (n + 1))]
    others, fifth = [10.0, 10.15, 10.2], [10.4, 10.3, 10.5]
    after = [each for n in range(20)
             for each in repeated(fifth if n == 4 else others, 3 * n, batch=8 * (n + 1))]  # fmt: skip
    found = {each.title: each for each in told(before, after)}
    seeming = found["batch 40"]
    assert seeming.p_value < 0.05 < seeming.q_value
    assert (seeming.differs_alone, seeming.verdict) == (True, "cannot tell")
    assert sentence(seeming).endswith(", which may be chance among several.")
    said = sentences([*found.values()])
    assert not any("The most differs" in text for text in said)
    assert (
        "Each verdict is held to all 20 jobs together, at a false discovery rate of 5 % (Benjamini and Hochberg), and "
        "each interval is of its own."
    ) in said


def test_the_largest_of_several_differences_is_said_to_be_likely_less():
    before = [each for n in range(4) for each in repeated([10.0, 10.1, 10.2], 3 * n, batch=8 * (n + 1))]
    after = [each for n in range(4) for each in repeated([8.0 - n, 8.1 - n, 8.2 - n], 3 * n, batch=8 * (n + 1))]
    (most,) = [text for text in sentences(told(before, after)) if "The most differs" in text]
    assert most.startswith("The most differs batch 32: 0.50")
    assert most.endswith("the time, the largest of 4, and so likely less.")


def test_one_run_of_one_epoch_cannot_tell():
    found = told([run(0, 10.0, epochs=[50.0, 10.0])], [run(0, 8.0, epochs=[40.0, 8.0])])
    assert (found[0].by, found[0].verdict, found[0].ratio.low) == ("one run each", "cannot tell", None)
    assert sentences(found) == [
        "resnet152, batch 64: cannot tell whether the time differs: 0.800 times.",
        "A single run with fewer than two known epochs gives no interval: sweep.repeats=3 sweep.order=random does.",
    ]


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0])
def test_a_metric_that_either_lacks_is_absent(value):
    assert told([run(0, value)], [run(0, 1.0)]) == []


def test_energy_is_compared_where_it_covers_the_same():
    before, after = [run(0, 10.0, 100.0)], [run(0, 10.0, 80.0)]
    assert [(each.metric, each.ratio.value) for each in told(before, after)] == [
        ("steady/e2e_s", pytest.approx(1.0)),
        ("steady/energy_j", pytest.approx(0.8)),
    ]
    other = [replace(after[0], energy_covers="module")]
    assert [each.metric for each in told(before, other)] == ["steady/e2e_s"]
    said = page(group_repeats(before), group_repeats(other)).sections[0].sentences
    assert "Not all energies are put side by side: it covers different things: GPUs used, module." in said


def test_the_modules_of_two_boards_are_compared_whatever_rails_feed_them():
    nano, nx = (replace(run(0, 10.0, joules, device={"name": name, "rails": {"total": [rail]}}),
                        energy_covers="module", energy_domains=[rail])
                for name, rail, joules in (("nano", "POM_5V_IN", 100.0), ("nx", "VDD_IN", 80.0)))  # fmt: skip
    assert [each.metric for each in told([nano], [nx])] == ["steady/e2e_s", "steady/energy_j"]


def test_over_all_points_the_point_is_the_unit():
    before = [run(n, 10.0, batch=8 * (n + 1)) for n in range(3)]
    after = [run(n, time_s, batch=8 * (n + 1)) for n, time_s in enumerate([8.0, 8.2, 7.9])]
    together = told(before, after)[0]
    known = ttest_1samp([log(x) for x in (0.8, 0.82, 0.79)], 0).confidence_interval()
    assert (together.title, together.by) == ("All 3 jobs", "points")
    assert (log(together.ratio.low), log(together.ratio.high)) == pytest.approx((known.low, known.high))


def test_the_page_tells_all_in_a_table():
    before, after = repeated([10.0, 10.1, 10.2]), repeated([8.0, 8.1, 8.3])
    found = page(group_repeats(before), group_repeats(after), ("main", "branch"))
    assert found.sections[0].sentences[0] == "branch (after) beside main (before): 1 job in both."
    (table,) = found.sections[0].grids
    (row,) = table.rows
    assert row == ["resnet152, batch 64", "time s", "10.1", "8.1", "0.805 (0.775 to 0.837)", "3 and 3 runs", "differs"]
    assert found.values["differences"][0]["verdict"] == "differs"


def test_two_points_are_told_each_for_itself():
    before, after = ([run(n, time_s, batch=8 * (n + 1)) for n in range(2)] for time_s in (10.0, 8.0))
    assert [each.title for each in told(before, after)] == ["batch 8", "batch 16"]


def test_what_differs_as_a_whole_and_what_is_left_out_are_on_the_page():
    before = [run(0, 1.0, device=CPU), run(1, 1.0, batch=8, device=CPU)]
    after = [run(0, 1.0, device=ORIN), run(1, 1.0, batch=16, device=ORIN), run(2, 1.0, batch=32, device=ORIN)]
    (section,) = page(group_repeats(before), group_repeats(after)).sections
    assert section.grids[1].rows == [["device", "cpu", "agx_orin"]]
    assert "Left out, without a counterpart in the other or with more than one: 1 before and 2 after." in (
        section.sentences
    )


def test_an_interval_that_says_nothing_is_not_told():
    found = one(repeated([1.0, 30.0]), repeated([2.0, 50.0]))
    assert found.ratio.high > 1e4
    assert sentence(found) == (
        "resnet152, batch 64: cannot tell whether the time differs: 1.83 times, and may be anything else."
    )


def test_of_very_many_the_table_has_those_that_differ_the_most():
    before = [run(n, 10.0, batch=n + 1) for n in range(100)]
    after = [run(n, 10.0 + n / 100, batch=n + 1) for n in range(100)]
    found = page(group_repeats(before), group_repeats(after))
    (table,) = found.sections[0].grids
    assert [row[0] for row in table.rows[:3]] == ["All 100 jobs", "batch 100", "batch 99"]
    assert (len(table.rows), table.title) == (60, "After, as multiples of before, the 60 that differ the most of 101")
    assert len(found.values["differences"]) == 101
