"""Parts of an epoch. Their bottleneck is on the golden pages of stall experiments and configurations."""

import math
from statistics import fmean

import pytest
from cases import case, cases
from project import ROOT

from epochmeter.results.bottleneck import NOT_APART, find_bottleneck, find_verdict, read_bottleneck, recorded_verdict

STALLS = ("steady/prep_stall_s", "steady/fetch_stall_s")
TIMERS = {"loader_read_s": 3.0, "loader_preprocess_s": 12.0, "loader_decode_s": 8.0}
PARTS = {"e2e_s": 10.0, "compute_s": 4.0, "copy_s": 0.0, "overhead_s": 1.0, "data_stall_s": 5.0}
OF_SCRIPT = {"loader_fetch_s": 14.0, "loader_read_s": 3.0, "loader_preprocess_s": 12.0}
DIVIDED, PREP, UNDIVIDED = (4.0, 1.0), (5.0, None), (None, None)
IN_MEMORY = "no storage device is read: the samples are in memory"
IN_CACHE = "no storage device is read: the samples are in the page cache"
NOT_TIMED = "reading and preprocessing are not timed"


@pytest.mark.parametrize("section", ["epoch", "steady"])
@cases(
    case(timers=TIMERS, medium="nvme", residency=None, stalls=DIVIDED, reason=None),
    case(timers=TIMERS, medium="nvme", residency=0.0, stalls=DIVIDED, reason=None),
    case(timers=TIMERS, medium="network", residency=0.98, stalls=DIVIDED, reason=None),
    case(timers=TIMERS, medium=None, residency=None, stalls=DIVIDED, reason=None),
    case(timers={}, medium="nvme", residency=0.0, stalls=UNDIVIDED, reason=NOT_TIMED),
    case(timers={}, medium=None, residency=None, stalls=UNDIVIDED, reason=NOT_TIMED),
    case(
        timers={**TIMERS, "loader_decode_s": None},
        medium="nvme",
        residency=0.0,
        stalls=UNDIVIDED,
        reason="decoding is not timed, and may be part of reading",
    ),
    # In a script, time on the processor is never reading.
    case(timers=OF_SCRIPT, medium=None, residency=None, stalls=DIVIDED, reason=None),
    case(timers={"loader_fetch_s": 15.0}, medium=None, residency=None, stalls=UNDIVIDED, reason=NOT_APART),
    case(timers=OF_SCRIPT, medium="nvme", residency=1.0, stalls=PREP, reason=IN_CACHE),
    case(
        timers=dict.fromkeys(TIMERS, 0.0),
        medium="nvme",
        residency=0.0,
        stalls=UNDIVIDED,
        reason="reading and preprocessing took no time",
    ),
    # Nothing is fetched: the samples are in the process, in a file system in memory, or all in the page cache.
    case(timers=TIMERS, medium="memory", residency=None, stalls=PREP, reason=IN_MEMORY),
    case(timers=TIMERS, medium="ram", residency=None, stalls=PREP, reason=IN_MEMORY),
    case(timers=TIMERS, medium="nvme", residency=1.0, stalls=PREP, reason=IN_CACHE),
    case(timers=TIMERS, medium="nvme", residency=0.9998, stalls=PREP, reason=IN_CACHE),
    case(timers={}, medium="nvme", residency=1.0, stalls=PREP, reason=IN_CACHE),
    case(
        timers={},
        medium="synthetic",
        residency=None,
        stalls=UNDIVIDED,
        reason="synthetic batches are neither read nor preprocessed",
    ),
)
def test_data_stall_is_divided_by_loader_times_if_a_storage_device_is_read(
    section, timers, medium, residency, stalls, reason
):
    metrics = {f"{section}/{name}": value for name, value in {**PARTS, **timers}.items()}
    metrics |= {} if residency is None else {f"{section}/page_cache_residency_before": residency}
    found = find_verdict(metrics, medium, section)
    times_s = dict(zip(("prep_stall", "fetch_stall"), stalls, strict=True))
    known = {f"{section}/{name}_s": value for name, value in times_s.items() if value is not None}
    fractions = {f"{section}/{name}_fraction": value / 10 for name, value in times_s.items() if value is not None}
    assert found.metrics == pytest.approx({f"{section}/data_stall_fraction": 0.5, **known, **fractions})
    unknown = [name for name in times_s if times_s[name] is None]
    assert found.absent == {f"{section}/{name}_s": reason for name in unknown}
    larger = "data_stall" if stalls == UNDIVIDED else "prep_stall"
    assert found.bottleneck == larger


@pytest.mark.parametrize(
    ("metrics", "bottleneck", "absent"),
    [
        ({}, "", dict.fromkeys(("bottleneck", *STALLS), "there is no epoch after the warm-up")),
        # A script whose waits for data are not seen: what is not measured may be the largest part.
        ({"e2e_s": 10.0, "compute_s": 4.0, "copy_s": None}, "",
         {"bottleneck": "not measured: copy_s, overhead_s, data_stall_s",
          **dict.fromkeys(STALLS, "the data stall is not measured")}),
        ({"e2e_s": 10.0, "compute_s": 6.0}, "compute", dict.fromkeys(STALLS, "the data stall is not measured")),
        ({**PARTS, "compute_s": 4.9, "data_stall_s": 4.9, "overhead_s": 0.2}, "compute or data_stall",
         dict.fromkeys(STALLS, NOT_TIMED)),
        ({**PARTS, "e2e_s": math.nan}, "",
         {"bottleneck": "not measured: e2e_s", **dict.fromkeys(STALLS, NOT_TIMED)}),
    ],
)  # fmt: skip
def test_what_is_not_known_is_absent_with_its_reason(metrics, bottleneck, absent):
    found = find_verdict({f"steady/{name}": value for name, value in metrics.items()}, None, "steady")
    assert (found.bottleneck, found.absent) == (bottleneck, absent)


def test_about_equal_parts_have_one_word_in_either_order():
    sizes = ({"compute": 0.5, "prep_stall": 0.49}, {"compute": 0.49, "prep_stall": 0.5})
    assert {find_bottleneck(seconds, 1.0).word for seconds in sizes} == {"compute or prep_stall"}


def test_a_recorded_verdict_is_read_and_an_older_record_without_one_gets_it():
    metrics = {f"steady/{name}": value for name, value in {**PARTS, **TIMERS}.items()}
    found = find_verdict(metrics, "nvme", "steady")
    assert recorded_verdict({"metrics": metrics}, "nvme", "steady") == found
    recorded = {"metrics": metrics, "bottleneck": "copy", "absent": {"steady/fetch_stall_s": "why"}}
    assert recorded_verdict(recorded, "nvme", "steady") == ("copy", {}, {"steady/fetch_stall_s": "why"})
    read = read_bottleneck(found.bottleneck, {**metrics, **found.metrics})
    assert read.parts == ("prep_stall",)
    shares = {"compute": 0.4, "copy": 0.0, "overhead": 0.1, "prep_stall": 0.4, "fetch_stall": 0.1}
    assert read.fractions == pytest.approx(shares)
    assert read_bottleneck("", metrics) is None
    assert read_bottleneck("compute", {}) is None


def test_data_stalls_compete_together_and_the_larger_kind_is_named():
    for compute, copy, prep, fetch, differ, parts, equal in (
        (47, 0, 43, 8, "every", "prep", True),
        (50, 0, 42, 7, "every", "compute prep", True),
        (30, 0, 35.5, 34.5, "every", "prep fetch", True),
        (10, 0, 50, 40, "none", "prep compute", False),
        (10, 0, 50, 40, "compute", "prep fetch", False),
        (45, 44, 7, 4, "compute", "compute copy", True),
        (98, 0, 1.9, 0, "none", "compute", True),
    ):
        seconds = {"compute": compute, "copy": copy, "prep_stall": prep, "fetch_stall": fetch}
        found = find_bottleneck(seconds, 100.0, lambda *pair, differ=differ: differ == "every" or differ in pair)
        names = " ".join(part.removesuffix("_stall") for part in found.parts)
        assert (names, found.equal) == (parts, equal)


def epoch(e2e_s, compute_s, stall_s, **more):
    parts = {"compute_s": compute_s, "data_stall_s": stall_s, "copy_s": 0.0, "overhead_s": 0.0, **more}
    return {f"epoch/{name}": value for name, value in {"e2e_s": e2e_s, **parts}.items()}


def of_mean(epochs, medium="ram"):
    """The bottleneck of the mean epoch, by the spread of the epochs."""
    names = [name for name in epochs[0] if all(name in metrics for metrics in epochs)]
    means = {
        name.replace("epoch/", "steady/"): math.fsum(each[name] for each in epochs) / len(epochs) for name in names
    }
    return find_verdict(means, medium, "steady", epochs).bottleneck


def test_a_difference_of_parts_counts_if_it_is_significant_over_the_epochs():
    """Differences -4, 2, 2 and 2: mean 0.5, interval 3.182 x 3 / 2 = 4.8. Differences 2, 1, 2 and 1: 1.5 and 0.92."""
    noisy = [epoch(10.0, 3.0, 7.0), *[epoch(10.0, 6.0, 4.0)] * 3]
    steady = [epoch(10.0, 6.0, 4.0), epoch(10.0, 5.5, 4.5)] * 2
    assert (of_mean(noisy), of_mean(steady)) == ("compute or prep_stall", "compute")
    as_measured = find_verdict(epoch(10.0, 5.2, 4.8), "ram", "epoch").bottleneck
    assert as_measured == "compute", "the verdict on a single epoch describes that epoch"


def test_two_epochs_have_a_wide_interval_and_one_needs_a_large_difference():
    """Differences 2 and 2.8: 2.4, and 12.7 x 0.4 = 5.1. Differences 2.3 and 2.5: 2.4, and 12.7 x 0.1 = 1.3."""
    assert of_mean([epoch(10.0, 6.0, 4.0), epoch(10.0, 6.4, 3.6)]) == "compute or prep_stall"
    assert of_mean([epoch(10.0, 6.15, 3.85), epoch(10.0, 6.25, 3.75)]) == "compute"
    assert [of_mean([epoch(10.0, part, 10 - part)]) for part in (6.4, 6.6)] == ["compute or prep_stall", "compute"]
    assert of_mean([epoch(10.0, 6.6, 3.4), epoch(10.0, 9.0, 1.0)]) == "compute", "large in both"


def test_data_stalls_of_epochs_are_divided_as_that_of_the_mean():
    """A first epoch that reads, and a second one from the page cache: on the average, half is read."""
    timers = {"loader_read_s": 6.0, "loader_preprocess_s": 2.0, "loader_decode_s": 1.0}
    cached = [epoch(10.0, 1.0, 9.0, page_cache_residency_before=fraction, **timers) for fraction in (0.0, 1.0)]
    assert of_mean(cached, "nvme") == "fetch_stall"
    unequal = [epoch(10.0, 1.0, 9.0, **{**timers, "loader_read_s": read_s}) for read_s in (2.0, 4.0)]
    assert of_mean(unequal, "nvme") == "prep_stall or fetch_stall"
    untimed = [epoch(10.0, 1.0, 9.0, **timers), epoch(10.0, 1.0, 9.0, **dict.fromkeys(timers, 0.0))]
    assert of_mean(untimed, "nvme") == "prep_stall or fetch_stall", "the kinds of the second epoch are not known"


@cases(
    case(word="compute or prep_stall", sizes=(4.9, 5.0, 0.0), parts=("prep_stall", "compute"), equal=True),
    case(word="compute or prep_stall", sizes=(5.4, 4.6, 0.0), parts=("compute", "prep_stall"), equal=False),
    case(word="compute or prep_stall", sizes=(5.0, 3.0, 2.0), parts=("compute", "prep_stall"), equal=True),
    case(word="prep_stall or fetch_stall", sizes=(1.0, 4.0, 5.0), parts=("fetch_stall", "prep_stall"), equal=False),
)
def test_recorded_tie_has_its_largest_part_first_and_whether_the_parts_are_about_equal(word, sizes, parts, equal):
    times = dict(zip(("compute_s", "prep_stall_s", "fetch_stall_s"), sizes, strict=True))
    read = read_bottleneck(word, {"steady/e2e_s": 10.0, **{f"steady/{name}": value for name, value in times.items()}})
    assert (read.parts, read.equal) == (parts, equal)


def test_verdicts_of_simulated_runs_around_the_border_are_right_or_undecided(monkeypatch):
    """`benchmarks/decisions/bottlenecks.md` has the rates of more runs."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from decisions.bottlenecks import rates

    for noise in (0.01, 0.05, 0.1, 0.2):
        for count in (1, 2, 3, 5, 10):
            assert rates(0.55, noise, count, 40)[0] <= 0.05, (noise, count)
    assert fmean(rates(0.5, 0.2, count, 100)[0] for count in (2, 3, 5, 10)) <= 0.08, "5 % expected"
    assert rates(0.55, 0.05, 5, 40)[1] >= 0.8, "clear differences are decided"
