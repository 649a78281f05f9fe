"""Two sweeps compared: what differs, and when the result is inconclusive."""

from dataclasses import replace
from math import log

import pytest
from golden import assert_golden
from scipy.stats import gmean, ttest_1samp
from sweeps import costing as run

from epochmeter.report.analyses.comparison import analyze
from epochmeter.report.render import Page, page_markdown
from epochmeter.report.runs.configuration import group_repeats

CPU, ORIN = {"name": "cpu", "rails": None}, {"name": "agx_orin", "rails": {"total": ["VDD_IN"]}}


def sweeps_compared(before, after):
    return analyze(group_repeats(before), group_repeats(after), ("main", "branch"))


def compared(before, after):
    result = sweeps_compared(before, after)
    return [*result.overall, *result.differences]


def one(before, after):
    (found,) = compared(before, after)
    return found


def repeated(times, energy_j=None, first=0, **keys):
    return [run(first + number, time_s, energy_j, repeat=number, **keys) for number, time_s in enumerate(times)]


@pytest.mark.parametrize(
    ("case", "before", "after"),
    [
        ("", [run for n in range(4) for run in repeated([10.0, 10.1, 10.2], 100.0, 3 * n, batch=8 * (n + 1))],
         [run for n in range(4) for run in repeated([8.0 - n, 8.1 - n, 8.2 - n], 80.0, 3 * n, batch=8 * (n + 1))]),
        ("single_runs", [run(0, 10.0, device=CPU), run(1, 1.0, batch=8, device=CPU)],
         [run(0, 8.0, 1.0, device=ORIN), run(1, 1.0, batch=16, device=ORIN), run(2, 1.0, batch=32, device=ORIN)]),
        ("inconclusive", repeated([1.0, 30.0]), repeated([2.0, 50.0])),
        ("energy", [run(0, 10.0, 100.0)], [run(0, 10.0, 80.0)]),
        ("scopes", [run(0, 10.0, 100.0)], [replace(run(0, 10.0, 80.0), energy_covers="module")]),
    ],
)  # fmt: skip
def test_text(case, before, after):
    assert_golden("comparison", sweeps_compared(before, after), case)


def test_interval_of_the_ratio_of_repeats_decides():
    cases = {"no difference": [10.0, 10.1, 10.2], "inconclusive": [8.0, 10.1, 12.0], "differs": [8.0, 8.1, 8.3]}
    for verdict, after in cases.items():
        found = one(repeated([10.0, 10.1, 10.2]), repeated(after))
        assert (found.basis, found.verdict) == ("runs", verdict)
        assert found.ratio.low < found.ratio.value < found.ratio.high
        assert (found.before, found.after) == pytest.approx((gmean([10.0, 10.1, 10.2]), gmean(after)))
    found = one([run(0, 10.0)], [run(0, 8.0)])
    assert (found.basis, found.verdict, found.ratio.low) == ("one each", "inconclusive", None)
    found = one(repeated([10.0, 10.1, 10.2]), [run(0, 8.0)])
    assert (found.basis, found.counts, found.verdict) == ("runs", (3, 1), "differs")


def test_values_of_a_row_agree_with_their_ratio_to_the_digits_shown():
    """The mean before is 503 ms, as the arithmetic one; after it is 80.3 ms, instead of 98 ms."""
    result = sweeps_compared(repeated([0.48, 0.51, 0.519]), repeated([0.03, 0.12, 0.144]))
    text = page_markdown(Page("comparison", result), is_plain=True)
    (row,) = [line.strip("| ").split(" | ") for line in text.splitlines() if " | time | " in line]
    assert row[2:4] == ["0.5027 s", "0.08033 s"]
    assert row[4].split()[0] == "0.16"
    assert pytest.approx(0.16, abs=0.005) == 0.08033 / 0.5027


def test_one_of_many_small_p_values_is_inconclusive():
    """One p-value of 0.03 among twenty is what chance alone brings."""
    slower = {4: [10.3, 10.2, 10.4]}
    before, after = (
        [each for n in range(20) for each in repeated(times.get(n, others), first=3 * n, batch=8 * (n + 1))]
        for times, others in (({}, [10.0, 10.1, 10.2]), (slower, [10.0, 10.15, 10.2]))
    )
    result = sweeps_compared(before, after)
    (seeming,) = [each for each in result.differences if each.title == "batch 40"]
    assert seeming.p_value < 0.05 < seeming.q_value
    assert (seeming.differs_alone, seeming.verdict) == (True, "inconclusive")
    assert (result.tested, result.significant_times, len(result.values["differences"])) == (20, [], 21)
    sizes = [abs(log(each.ratio.value)) for each in result.by_size]
    assert sizes == sorted(sizes, reverse=True), "the largest difference comes first"


def test_only_measured_metrics_are_compared():
    after, absent = [run(0, 10.0, 80.0)], [[run(0, value)] for value in (None, float("nan"), 0.0)]
    for one_side, other in (([], []), (after, []), ([], after), *((runs, after) for runs in absent)):
        result = sweeps_compared(one_side, other)
        assert (bool(result.pairs), result.overall, result.differences) == (bool(one_side and other), [], [])


def test_energies_of_each_pair_must_cover_the_same_parts():
    def on_hosts(*covers):
        return [replace(run(n, 10.0, 90.0), host=f"h{n}", energy_covers=scope) for n, scope in enumerate(covers)]

    assert sweeps_compared(on_hosts("gpu0", "module"), on_hosts("gpu0", "module")).no_energy is None
    mixed = sweeps_compared(on_hosts("gpu0", "gpu0"), on_hosts("gpu0", "module"))
    assert mixed.no_energy.covers == ("gpu0", "module")
    short = [replace(run(0, 10.0), energy_covers="gpu0")]  # the meter resolves the run, not its epochs
    assert sweeps_compared(short, short).no_energy.without == 2


def test_over_all_configurations_the_configuration_is_the_unit():
    before = [run(n, 10.0, batch=8 * (n + 1)) for n in range(3)]
    after = [run(n, time_s, batch=8 * (n + 1)) for n, time_s in enumerate([8.0, 8.2, 7.9])]
    together = compared(before, after)[0]
    known = ttest_1samp([log(x) for x in (0.8, 0.82, 0.79)], 0).confidence_interval()
    assert (together.title, together.basis, together.counts) == ("", "configurations", (3, 3))
    assert (log(together.ratio.low), log(together.ratio.high)) == pytest.approx((known.low, known.high))
    assert [each.title for each in compared(before[:2], after[:2])] == ["batch 8", "batch 16"]


# Counterparts


def on(host, number, **keys):
    return replace(run(number, 1.0, **keys), host=host)


def test_settings_that_rehearsals_did_not_apply_are_no_changes():
    limits = [replace(run(n, 1.0, power_limit=limit), rehearsal=("no limit",)) for n, limit in enumerate((100, 130))]
    for before, after in ((limits, [run(5, 1.0, power_limit=None)]), (limits, limits[1:])):
        found = sweeps_compared(before, after)
        assert (found.changed, len(found.pairs)) == ({}, 1)
    applied = sweeps_compared(limits, [run(5, 1.0, power_limit=90)])
    assert applied.changed == {"power_limit": (["null"], ["90"])}


def test_counterparts_differ_in_common_changes_only():
    for before, after, pairs, changed, unmatched in (
        ([run(0, 1.0), run(1, 1.0, batch=8)], [run(5, 1.0, batch=8), run(6, 1.0)], [(0, 6), (1, 5)], {}, (0, 0)),
        # A key that changed in all configurations is ignored.
        ([run(0, 1.0, device=CPU), run(1, 1.0, batch=8, device=CPU)],
         [run(0, 1.0, device=ORIN), run(1, 1.0, batch=8, device=ORIN)],
         [(0, 0), (1, 1)], {"device": (["cpu"], ["agx_orin"])}, (0, 0)),
        ([run(0, 1.0)], [run(0, 1.0, fan="keep")], [(0, 0)], {"fan": (["absent"], ["keep"])}, (0, 0)),
        ([on("h1", 0), on("h2", 1, batch=8)], [on("h2", 0), on("h1", 1, batch=8)], [], {}, (2, 2)),
        ([on("h1", 0), on("h1", 1, batch=8)], [on("h2", 0), on("h2", 1, batch=8)], [(0, 0), (1, 1)],
         {"host": (["h1"], ["h2"])}, (0, 0)),
        ([run(0, 1.0), run(1, 1.0, batch=8)], [run(0, 1.0), run(1, 1.0, batch=16)], [(0, 0)], {}, (1, 1)),
        # Without the limit, the configurations of a side are equal.
        ([run(n, 1.0, power_limit=limit) for n, limit in enumerate(("MAXN", "5"))],
         [run(n, 1.0, power_limit=limit) for n, limit in enumerate(("30", "15"))],
         [], {"power_limit": (["MAXN", "5"], ["30", "15"])}, (2, 2)),
        ([replace(run(0, 1.0), platform={"git commit": "1234", "CPU": "x"})],
         [replace(run(0, 1.0), platform={"git commit": "5678", "CPU": "x"})],
         [(0, 0)], {"git commit": (["1234"], ["5678"])}, (0, 0)),
    ):  # fmt: skip
        found = sweeps_compared(before, after)
        assert [(old.numbers, new.numbers) for old, new in found.pairs] == [([old], [new]) for old, new in pairs]
        assert (found.changed, found.unmatched) == (changed, unmatched)
