"""The bottleneck of a configuration: from the mean parts of its runs, with their intervals."""

import pytest
from sweeps import trained

from epochmeter.report.analyses.bottleneck import epoch_breakdowns
from epochmeter.report.runs.configuration import group_repeats


def spent(number=0, layout="files", **seconds):
    """A run of an epoch of ten seconds."""
    parts = {"compute_s": None, **{f"{part}_s": told for part, told in seconds.items()}}
    return trained(number, 100.0, steady=parts, repeat=number, dataset={"name": "jpeg", "layout": layout})


def one(*runs):
    (bound,) = epoch_breakdowns(group_repeats(list(runs)))
    return bound.bottleneck


TIMERS = {"loader_read": 3.0, "loader_preprocess": 1.0, "loader_decode": 0.5}


def test_the_parts_are_those_of_the_run():
    found = one(spent(compute=4.0, copy=0.5, overhead=0.5, data_stall=5.0, **TIMERS))
    assert found.text == "compute-bound; 38 % fetch stall, 12 % prep stall"
    assert found.fractions == pytest.approx(
        {"compute": 0.4, "copy": 0.05, "overhead": 0.05, "fetch_stall": 0.375, "prep_stall": 0.125}
    )


def test_a_dataset_in_memory_has_no_fetch_stall():
    assert one(spent(layout="memory", compute=1.0, data_stall=9.0, **TIMERS)).text == "prep-bound"


def test_repeats_count_as_their_mean():
    found = one(spent(0, compute=9.0, overhead=1.0), spent(1, compute=7.0, overhead=3.0))
    assert found.fractions == pytest.approx({"compute": 0.8, "overhead": 0.2})


def test_noisy_repeats_leave_parts_not_significantly_different():
    found = one(spent(0, compute=9.0, overhead=1.0), spent(1, compute=3.0, overhead=7.0))
    assert found.text == "compute-bound or overhead-bound (no significant difference)"
    alike = [spent(n, compute=6.0 + n / 10, overhead=4.0 - n / 10) for n in range(3)]
    assert one(*alike).text == "compute-bound"


def test_a_part_that_is_absent_may_be_the_largest():
    assert epoch_breakdowns(group_repeats([spent(compute=4.0)])) == []
    assert one(spent(compute=6.0)).text == "compute-bound"


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_without_a_time_there_is_no_bottleneck(value):
    assert epoch_breakdowns(group_repeats([trained(0, 100.0, steady={"e2e_s": value, "compute_s": 9.0})])) == []
