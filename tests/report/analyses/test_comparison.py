"""Two sweeps compared: what differs, and when the result is inconclusive."""

from dataclasses import replace
from math import log

import pytest
from scipy.stats import ttest_1samp
from sweeps import trained

from epochmeter.report.analyses.comparison import analyze, page, sentence, sentences
from epochmeter.report.runs.configuration import group_repeats

CPU, ORIN = {"name": "cpu", "rails": None}, {"name": "agx_orin", "rails": {"total": ["VDD_IN"]}}


def run(number, time_s, energy_j=None, epochs=(), **keys):
    metrics = [{"epoch/e2e_s": seconds} for seconds in epochs]
    return trained(number, 100.0, steady={"e2e_s": time_s, "energy_j": energy_j}, epochs=metrics, **keys)


def repeated(times, first=0, **keys):
    return [run(first + number, time_s, repeat=number, **keys) for number, time_s in enumerate(times)]


def compared(before, after):
    return analyze(group_repeats(before), group_repeats(after))


def one(before, after):
    (found,) = compared(before, after)
    return found


def pages(before, after, *names):
    return page(group_repeats(before), group_repeats(after), *names)


@pytest.mark.parametrize(("before", "after"), [([], []), ([run(0, 1.0)], []), ([], [run(0, 1.0)])])
def test_without_runs_there_is_nothing_to_compare(before, after):
    assert compared(before, after) == []
    assert "nothing to compare" in pages(before, after).sections[0].sentences[0]


def test_repeats_give_the_ratio_an_interval():
    found = one(repeated([10.0, 10.1, 10.2]), repeated([8.0, 8.1, 8.3]))
    assert found.ratio.value == pytest.approx(0.805, abs=1e-3)
    assert 0.77 < found.ratio.low < 0.79
    assert (found.basis, found.verdict, found.is_equivalent) == ("runs", "differs", False)
    assert (found.before, found.after) == pytest.approx((10.1, 24.4 / 3))
    assert sentence(found).startswith("resnet152, batch 64: 0.805 times (0.7")


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ([10.0, 10.1, 10.2], "no difference"),
        ([10.01, 10.1, 10.22], "no difference"),
        ([8.0, 10.1, 12.0], "inconclusive"),
        ([9.0, 9.1, 9.2], "differs"),
    ],
)
def test_interval_decides(after, verdict):
    found = one(repeated([10.0, 10.1, 10.2]), repeated(after))
    assert (found.verdict, found.is_equivalent) == (verdict, verdict == "no difference")


def test_equal_runs_do_not_differ():
    found = one(repeated([10.0, 10.0]), repeated([10.0, 10.0]))
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == (1.0, 1.0, 1.0)
    assert found.verdict == "no difference"


def test_epochs_of_a_single_run_give_no_interval():
    found = one([run(0, 10.0, epochs=[50.0, 10.0, 10.1, 9.9])], [run(0, 8.0, epochs=[40.0, 8.0, 8.1, 7.9])])
    assert (found.basis, found.verdict, found.ratio.low) == ("one run each", "inconclusive", None)
    assert sentences([found]) == [
        "resnet152, batch 64: inconclusive in time: 0.800 times.",
        "No intervals, as no configuration has repeats. hint: sweep.repeats=3 sweep.order=random gives them.",
    ]


def test_single_run_uses_the_variance_of_the_others_repeats():
    found = one(repeated([10.0, 10.1, 10.2]), [run(0, 8.0)])
    assert (found.basis, found.interval_of, found.verdict) == ("runs", "3 and 1 runs", "differs")
    assert "use the variance" in sentences([found])[-1]


def test_one_of_many_small_p_values_is_inconclusive():
    """One p-value of 0.03 among twenty is what chance alone brings."""
    before = [each for n in range(20) for each in repeated([10.0, 10.1, 10.2], 3 * n, batch=8 * (n + 1))]
    others, fifth = [10.0, 10.15, 10.2], [10.3, 10.2, 10.4]
    after = [each for n in range(20)
             for each in repeated(fifth if n == 4 else others, 3 * n, batch=8 * (n + 1))]  # fmt: skip
    found = {each.title: each for each in compared(before, after)}
    seeming = found["batch 40"]
    assert seeming.p_value < 0.05 < seeming.q_value
    assert (seeming.differs_alone, seeming.verdict) == (True, "inconclusive")
    texts = sentences([*found.values()])
    assert not any("Largest difference" in text for text in texts)
    assert any("false discovery rate of 20 configurations at 5 %" in text for text in texts)


def test_largest_of_several_differences_is_probably_less():
    before = [each for n in range(4) for each in repeated([10.0, 10.1, 10.2], 3 * n, batch=8 * (n + 1))]
    after = [each for n in range(4) for each in repeated([8.0 - n, 8.1 - n, 8.2 - n], 3 * n, batch=8 * (n + 1))]
    (most,) = [text for text in sentences(compared(before, after)) if "Largest difference" in text]
    assert most.startswith("Largest difference: batch 32: 0.50")
    assert "the largest of 4 differences" in most


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0])
def test_metric_that_either_lacks_is_absent(value):
    assert compared([run(0, value)], [run(0, 1.0)]) == []


def test_energy_is_compared_if_it_covers_the_same():
    before, after = [run(0, 10.0, 100.0)], [run(0, 10.0, 80.0)]
    assert [(each.metric, each.ratio.value) for each in compared(before, after)] == [
        ("steady/e2e_s", pytest.approx(1.0)),
        ("steady/energy_j", pytest.approx(0.8)),
    ]
    other = [replace(after[0], energy_covers="module")]
    assert [each.metric for each in compared(before, other)] == ["steady/e2e_s"]
    assert "Not all energies can be compared: it covers different things: GPUs used, module." in (
        pages(before, other).sections[0].sentences
    )


def test_modules_of_two_boards_are_compared_whatever_their_rails():
    nano, nx = (replace(run(0, 10.0, joules, device={"name": name, "rails": {"total": [rail]}}),
                        energy_covers="module", energy_domains=[rail])
                for name, rail, joules in (("nano", "POM_5V_IN", 100.0), ("nx", "VDD_IN", 80.0)))  # fmt: skip
    assert [each.metric for each in compared([nano], [nx])] == ["steady/e2e_s", "steady/energy_j"]


def test_over_all_configurations_the_configuration_is_the_unit():
    before = [run(n, 10.0, batch=8 * (n + 1)) for n in range(3)]
    after = [run(n, time_s, batch=8 * (n + 1)) for n, time_s in enumerate([8.0, 8.2, 7.9])]
    together = compared(before, after)[0]
    known = ttest_1samp([log(x) for x in (0.8, 0.82, 0.79)], 0).confidence_interval()
    assert (together.title, together.basis) == ("All 3 configurations", "configurations")
    assert (log(together.ratio.low), log(together.ratio.high)) == pytest.approx((known.low, known.high))
    two = compared(before[:2], after[:2])
    assert [each.title for each in two] == ["batch 8", "batch 16"]


def test_page_has_all_in_a_table():
    found = pages(repeated([10.0, 10.1, 10.2]), repeated([8.0, 8.1, 8.3]), ("main", "branch"))
    assert found.sections[0].sentences[0] == "branch (after) compared with main (before): 1 configuration in both."
    (table,) = found.sections[0].grids
    (row,) = table.rows
    assert [*row[:4], *row[5:]] == ["resnet152, batch 64", "time s", "10.1", "8.1", "3 and 3 runs", "differs"]
    assert found.values["differences"][0]["verdict"] == "differs"


def test_common_changes_and_missing_counterparts_are_on_the_page():
    before = [run(0, 1.0, device=CPU), run(1, 1.0, batch=8, device=CPU)]
    after = [run(0, 1.0, device=ORIN), run(1, 1.0, batch=16, device=ORIN), run(2, 1.0, batch=32, device=ORIN)]
    (section,) = pages(before, after).sections
    assert section.grids[1].rows == [["device", "cpu", "agx_orin"]]
    assert "Not compared, without exactly one counterpart: 1 before and 2 after." in section.sentences


def test_very_wide_interval_is_not_printed():
    found = one(repeated([1.0, 30.0]), repeated([2.0, 50.0]))
    assert found.ratio.high > 1e3
    assert sentence(found) == (
        "resnet152, batch 64: inconclusive in time: 1.83 times; too few repeats for an interval."
    )


def test_table_of_many_has_the_largest_differences():
    before = [run(n, 10.0, batch=n + 1) for n in range(100)]
    after = [run(n, 10.0 + n / 100, batch=n + 1) for n in range(100)]
    found = pages(before, after)
    (table,) = found.sections[0].grids
    assert [row[0] for row in table.rows[:3]] == ["All 100 configurations", "batch 100", "batch 99"]
    assert (len(table.rows), table.title) == (60, "After, as multiples of before, the 60 largest of 101 differences")
    assert len(found.values["differences"]) == 101
