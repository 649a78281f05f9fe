"""Points of two sweeps: which is which, and what differs between the two as a whole."""

from dataclasses import replace

from sweeps import trained

from epochmeter.report.analyses.comparison import matching
from epochmeter.report.runs.configuration import group_repeats

CPU, ORIN = {"name": "cpu", "rails": None}, {"name": "agx_orin", "rails": {"total": ["VDD_IN"]}}


def run(number, time_s, **keys):
    return trained(number, 100.0, steady={"e2e_s": time_s}, **keys)


def matched(before, after):
    found = matching(group_repeats(before), group_repeats(after))
    return [(old.numbers, new.numbers) for old, new in found.pairs], found


def test_the_same_jobs_are_matched_whatever_their_order():
    pairs, found = matched([run(0, 1.0), run(1, 1.0, batch=8)], [run(5, 1.0, batch=8), run(6, 1.0)])
    assert pairs == [([0], [6]), ([1], [5])]
    assert (found.changed, found.unmatched) == ({}, (0, 0))


def test_key_changed_in_all_configurations_is_ignored_and_listed():
    before = [run(0, 1.0, device=CPU), run(1, 1.0, batch=8, device=CPU)]
    after = [run(0, 1.0, device=ORIN), run(1, 1.0, batch=8, device=ORIN)]
    pairs, found = matched(before, after)
    assert pairs == [([0], [0]), ([1], [1])]
    assert found.changed == {"device": (["cpu"], ["agx_orin"])}


def on(host, number, **keys):
    return replace(run(number, 1.0, **keys), host=host)


def test_configuration_is_matched_on_the_same_host():
    before, after = ([on(host, n + first) for n, host in enumerate(("h1", "h2"))] for first in (0, 5))
    pairs, found = matched(before, after[::-1])
    assert pairs == [([0], [5]), ([1], [6])]
    assert (found.changed, found.unmatched) == ({}, (0, 0))


def test_configuration_on_another_host_has_no_counterpart():
    pairs, found = matched([on("h1", 0), on("h2", 1, batch=8)], [on("h2", 0), on("h1", 1, batch=8)])
    assert (pairs, found.unmatched) == ([], (2, 2))


def test_changed_host_is_listed():
    pairs, found = matched([on("h1", 0), on("h1", 1, batch=8)], [on("h2", 0), on("h2", 1, batch=8)])
    assert (pairs, found.changed) == ([([0], [0]), ([1], [1])], {"host": (["h1"], ["h2"])})


def test_changed_platform_is_listed():
    before = replace(run(0, 1.0), host="a", platform={"git commit": "1234", "CPU": "x"})
    after = replace(run(0, 1.0), host="a", platform={"git commit": "5678", "CPU": "x"})
    assert matched([before], [after])[1].changed == {"git commit": (["1234"], ["5678"])}


def test_configuration_of_one_sweep_only_has_no_counterpart():
    pairs, found = matched([run(0, 1.0), run(1, 1.0, batch=8)], [run(0, 1.0), run(1, 1.0, batch=16)])
    assert (pairs, found.unmatched) == ([([0], [0])], (1, 1))


def test_varied_key_without_common_value_leaves_no_pair():
    before = [run(0, 1.0, power_limit="MAXN"), run(1, 1.0, power_limit="5")]
    after = [run(0, 1.0, power_limit="30"), run(1, 1.0, power_limit="15")]
    assert matched(before, after)[0] == []


def test_key_of_newer_versions_does_not_prevent_a_match():
    assert matched([run(0, 1.0)], [run(0, 1.0, fan="keep")])[1].changed == {"fan": (["absent"], ["keep"])}
