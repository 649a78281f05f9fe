"""The bottleneck of mean epochs, and the repeats that decide it: known answers."""

from dataclasses import replace
from math import inf, nan

import pytest
from sweeps import costing, spread, trained, with_verdict

from epochmeter.report.analyses.bottleneck import epoch_bottlenecks, repeats_needed
from epochmeter.report.runs.configuration import group_repeats


def test_repeats_needed_for_a_difference():
    """Variances 0.09 each: t(0.975) + t(0.8) times sqrt(0.18 / n) is 0.538 for n = 6, and 0.489 for 7."""
    assert repeats_needed({"a": spread(0.5, 0.3), "b": spread(0.0, 0.3)}) == 7
    assert repeats_needed({"a": spread(9.0, 0.3)}) == 4, "more than there are"


def spent(number=0, medium="nvme", **seconds):
    """A run of an epoch of ten seconds."""
    parts = {"compute_s": None, **{f"{part}_s": value for part, value in seconds.items()}}
    return with_verdict(replace(trained(number, 100.0, steady=parts, repeat=number), storage={"medium": medium}))


def one(*runs):
    (bottleneck,) = epoch_bottlenecks(group_repeats(list(runs))).values()
    return bottleneck


TIMERS = {"loader_read": 3.0, "loader_preprocess": 1.0, "loader_decode": 0.5}


def test_parts_of_configurations_are_means_of_their_runs_and_may_be_absent():
    found = one(spent(compute=4.0, copy=0.5, overhead=0.5, data_stall=5.0, **TIMERS))
    assert found.parts == ("fetch_stall",), "both stalls take more than compute"
    assert found.fractions == pytest.approx(
        {"compute": 0.4, "copy": 0.05, "overhead": 0.05, "fetch_stall": 0.375, "prep_stall": 0.125}
    )
    assert one(spent(medium="ram", compute=1.0, data_stall=9.0, **TIMERS)).parts == ("prep_stall",)
    found = one(spent(0, compute=9.0, overhead=1.0), spent(1, compute=3.0, overhead=7.0))
    assert found.fractions == pytest.approx({"compute": 0.6, "overhead": 0.4})
    assert (found.parts, found.equal) == (("compute", "overhead"), False)
    assert one(*(spent(n, compute=6.0 + n / 10, overhead=4.0 - n / 10) for n in range(3))).parts == ("compute",)
    assert one(spent(compute=6.0)).parts == ("compute",)
    # Student's interval of differences of 0.72 and 0.94 of the time is 0.83 +- 1.4.
    found = one(*(spent(n, compute=compute, overhead=0.25) for n, compute in enumerate((7.45, 9.65))))
    assert found.parts == ("compute",), "the other part is small in both runs"
    assert one(*(spent(n, compute=c, overhead=10 - c) for n, c in enumerate((6.4, 9.4)))).parts != ("compute",)
    absent = [spent(compute=4.0), *(costing(0, value, steady={"compute_s": 9.0}) for value in (None, nan, inf))]
    assert [epoch_bottlenecks(group_repeats([run])) for run in absent] == [{}] * 4
