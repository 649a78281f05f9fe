"""The bottleneck by difference of the three conditions: known answers."""

from math import inf, nan

import pytest
from sweeps import costing, rows, spread, trained

from epochmeter.report.analyses.bottleneck import epoch_bottlenecks, repeats_needed
from epochmeter.report.analyses.stalls import analyze
from epochmeter.report.runs.configuration import group_repeats


def verdict(*times, device=None, in_memory=False):
    """The verdict of a stall experiment with these times on synthetic batches, from the cache and from storage."""
    runs = rows(*times)
    for part, values in (device or {}).items():
        for run, seconds in zip(runs, values, strict=False):
            run.metrics[f"steady/{part}_s"] = seconds
    (result,) = analyze(runs)
    return result.in_memory if in_memory else result.verdict


def test_the_bottleneck_is_the_largest_part():
    for times, part, *stalls in (
        ((5.0, 6.0, 12.0), "fetch_stall", "prep_stall"),
        ((5.0, 11.5, 12.0), "prep_stall", "fetch_stall"),
        ((12.0, 12.0, 12.0), "compute"),
        ((12.0, 12.05, 12.1), "compute"),  # each stall is less than 2 % of 12.1 s
        ((1.62, 1.68, 1.69), "compute", "prep_stall"),
        ((6.0, 9.0, 12.0), "compute", "prep_stall", "fetch_stall"),
    ):
        for found in (verdict(*([value] for value in times)), verdict(*(spread(value, 0.001) for value in times))):
            assert (found.parts, found.stalls, found.why) == ((part,), tuple(stalls), None)


def test_parts_without_significant_difference_are_named_with_the_repeats_needed():
    noisy = spread(11.4), spread(11.5, 0.3), spread(12.0, 0.3)  # fetch stall 0.5 +- 0.7
    for found in (verdict(*noisy), verdict(*noisy, in_memory=True)):
        assert (found.parts, found.stalls) == (("compute",), ())
    # Compute 4.6, fetch stall 5.2: 0.6 +- 0.73.
    found = verdict(spread(4.6, 0.3), spread(5.6, 0.3), spread(10.8, 0.3))
    assert (found.parts, found.equal) == (("fetch_stall", "compute"), False)
    assert found.repeats == repeats_needed({"a": spread(4.6, 0.3), "b": spread(5.6, 0.3), "c": spread(-10.8, 0.3)})
    # Variances 0.09 each: t(0.975) + t(0.8) times sqrt(0.18 / n) is 0.538 for n = 6, and 0.489 for 7.
    assert repeats_needed({"a": spread(0.5, 0.3), "b": spread(0.0, 0.3)}) == 7


def test_parts_of_the_epoch_on_synthetic_batches_are_parts_of_their_own():
    device = {"compute": spread(1.0), "copy": spread(3.5), "overhead": spread(0.4)}
    found = verdict(spread(5.0), spread(6.0), spread(7.0), device=device)
    assert (found.parts, found.stalls) == (("copy",), ("prep_stall", "fetch_stall"))
    assert found.fractions["overhead"] == pytest.approx(0.4 / 7)


def test_a_stall_far_below_zero_decides_nothing_and_a_stall_by_noise_is_zero():
    for times in ([[2.46], [0.28], [0.52]], [spread(2.46, 0.005), spread(0.28, 0.005), spread(0.52, 0.005)]):
        for found in (verdict(*times), verdict(*times, in_memory=True)):
            assert (found.parts, found.why) == ((), "disturbed")
    found = verdict([1.00, 1.01, 0.99], [0.997, 1.003, 0.993], [2.0, 2.01, 1.99])
    assert (found.parts, found.equal) == (("fetch_stall", "compute"), True)


# From the parts of the mean epochs of runs


def spent(number=0, layout="files", **seconds):
    """A run of an epoch of ten seconds."""
    parts = {"compute_s": None, **{f"{part}_s": value for part, value in seconds.items()}}
    return trained(number, 100.0, steady=parts, repeat=number, dataset={"name": "jpeg", "layout": layout})


def one(*runs):
    (bottleneck,) = epoch_bottlenecks(group_repeats(list(runs))).values()
    return bottleneck


TIMERS = {"loader_read": 3.0, "loader_preprocess": 1.0, "loader_decode": 0.5}


def test_parts_of_configurations_are_means_of_their_runs_and_may_be_absent():
    found = one(spent(compute=4.0, copy=0.5, overhead=0.5, data_stall=5.0, **TIMERS))
    assert (found.parts, found.stalls) == (("compute",), ("fetch_stall", "prep_stall"))
    assert found.fractions == pytest.approx(
        {"compute": 0.4, "copy": 0.05, "overhead": 0.05, "fetch_stall": 0.375, "prep_stall": 0.125}
    )
    assert one(spent(layout="memory", compute=1.0, data_stall=9.0, **TIMERS)).parts == ("prep_stall",)
    found = one(spent(0, compute=9.0, overhead=1.0), spent(1, compute=3.0, overhead=7.0))
    assert found.fractions == pytest.approx({"compute": 0.6, "overhead": 0.4})
    assert (found.parts, found.equal) == (("compute", "overhead"), False)
    assert one(*(spent(n, compute=6.0 + n / 10, overhead=4.0 - n / 10) for n in range(3))).parts == ("compute",)
    assert one(spent(compute=6.0)).parts == ("compute",)
    absent = [spent(compute=4.0), *(costing(0, value, steady={"compute_s": 9.0}) for value in (None, nan, inf))]
    assert [epoch_bottlenecks(group_repeats([run])) for run in absent] == [{}] * 4
