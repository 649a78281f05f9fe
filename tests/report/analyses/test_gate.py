"""A gate: bounds that are violated, that hold, and that cannot be decided."""

import math
import random
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from golden import assert_golden
from sweeps import costing

from epochmeter.report.analyses.gate import check_bounds, exit_code
from epochmeter.report.render import Page, render_html
from epochmeter.report.runs.configuration import group_repeats


def configurations(*samples):
    """One configuration per sample of times in s."""
    return group_repeats([
        costing(100 * place + repeat, time_s, batch=8 * 2**place, repeat=repeat,
                sweep={"order": "random", "repeats": len(times)})
        for place, times in enumerate(samples) for repeat, time_s in enumerate(times)
    ])  # fmt: skip


def checks(before, after, bound=1.03, **energy):
    pairs = list(zip(configurations(*before), configurations(*after), strict=True))
    return check_bounds(pairs, {"time": bound, **energy})


def around(value, spread=0.01, count=5):
    return [value * (1 + spread * (place - (count - 1) / 2)) for place in range(count)]


def test_ratio_is_compared_with_the_bound():
    for after, verdict, code in (
        (1.10, "violated", 2),
        (1.03, "undecided", 3),
        (1.00, "passed", 0),
        (0.9, "passed", 0),
    ):
        (check,) = result = checks([around(1.0, 0.001)], [around(after, 0.001)])
        assert (check.verdict, exit_code(result)) == (verdict, code)
        assert check.ratio.value == pytest.approx(after, rel=1e-6)
    (check,) = checks([[1.0]], [[2.0]])
    assert (check.verdict, check.ratio.value, check.ratio.low, check.repeats) == ("undecided", 2.0, None, None)
    equal = checks([[1.0, 1.0]] * 3, [[1.0, 1.0], [1.03, 1.03], [1.04, 1.04]])
    assert [check.verdict for check in equal] == ["passed", "passed", "violated"], "repeats without variance"
    with pytest.raises(ValueError, match="no configuration"):
        checks([], [])
    # By hand: log(1.055 / 1.03) is 0.0240; 1.734 + 0.862 times 0.02 x sqrt(2 / 10) is 0.0232, and 0.0246 for 9.
    (check,) = checks([around(1.0, 0.02, 3)], [around(1.055, 0.02, 3)])
    assert (check.verdict, check.repeats) == ("undecided", 10)


def with_wall(run, wall_s):
    return replace(run, metrics={**run.metrics, "run/wall_s": wall_s})


def test_time_of_the_whole_run_has_a_bound_of_its_own():
    """Its epochs take as long as before, but starting it does not."""
    before, after = (
        group_repeats([
            with_wall(costing(number, 1.0, batch=8, repeat=number), wall_s)
            for number, wall_s in enumerate(around(seconds, 0.001))
        ])
        for seconds in (10.0, 12.0)
    )  # fmt: skip
    pairs = list(zip(before, after, strict=True))
    found = check_bounds(pairs, {"time": 1.03, "run": 1.03})
    assert [(check.metric, check.verdict) for check in found] == [("time", "passed"), ("run", "violated")]
    assert found[1].ratio.value == pytest.approx(1.2, rel=1e-3)


def test_many_configurations_at_the_bound_are_rarely_called_violations():
    """Holm's correction: any violation among eight configurations exactly at the bound in about 5 % of the gates."""
    chance, alarms = random.Random(1), 0
    for _ in range(100):
        before, after = ([[factor * math.exp(chance.gauss(0, 0.01)) for _ in range(3)] for _ in range(8)]
                         for factor in (1.0, 1.03))  # fmt: skip
        alarms += exit_code(checks(before, after)) == 2
    assert alarms <= 10


def test_drift_cancels_between_interleaved_configurations():
    drift, noise = [1.0, 1.1, 1.2, 1.3, 1.4], [1.0, 1.001, 0.999, 1.0, 1.001]
    pair = tuple(configurations(drift, [1.06 * a * b for a, b in zip(drift, noise, strict=True)]))
    for interleaved, verdict in {False: "undecided", True: "violated"}.items():
        assert check_bounds([pair], {"time": 1.03}, interleaved=interleaved)[0].verdict == verdict


def test_text_and_missing_energy():
    before = [around(1.0, 0.002, 3), around(2.0, 0.002, 3), around(3.0, 0.02, 3)]
    after = [around(1.1, 0.002, 3), around(1.99, 0.002, 3), around(3.05, 0.02, 3)]
    assert_golden("gate", checks(before, after, energy=1.05))
    (short,) = configurations([1.0])
    short.runs = [replace(short.runs[0], energy_covers="gpu0")]  # the meter resolves the run, not its epochs
    assert check_bounds([(short, short)], {"energy": 1.05})[0].no_energy.without == 2


def test_junit_file_counts_failures_and_errors():
    checked = checks([around(1.0, 0.001), [1.0, 1.0]], [around(1.1, 0.001), [1.0, 1.0]], energy=1.05)
    suite = ElementTree.fromstring(
        render_html("gate.xml.j2", title="B & A", page=Page("gate", checked, "4 runs")).encode()
    )
    assert suite.attrib == {"name": "B & A", "tests": "4", "failures": "1", "errors": "2"}
    assert [part.attrib for part in suite.iter("property")] == [{"name": "warning", "value": "4 runs"}]
    assert [[part.tag for part in case] for case in suite.iter("testcase")] == [["failure"], [], ["error"], ["error"]]
    assert len({(case.get("classname"), case.get("name")) for case in suite.iter("testcase")}) == 4
    assert all("; 4 runs" in part.get("message") for case in suite.iter("testcase") for part in case)
