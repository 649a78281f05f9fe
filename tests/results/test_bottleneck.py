"""Parts of an epoch. Their bottleneck is on the golden pages of stall experiments and configurations."""

import math

import pytest

from epochmeter.results.bottleneck import find_bottleneck, find_verdict, read_bottleneck, recorded_verdict

STALLS = ("steady/prep_stall_s", "steady/fetch_stall_s")
TIMERS = {"loader_read_s": 3.0, "loader_preprocess_s": 12.0, "loader_decode_s": 8.0}
PARTS = {"e2e_s": 10.0, "compute_s": 4.0, "copy_s": 0.0, "overhead_s": 1.0, "data_stall_s": 5.0}
DIVIDED, PREP, UNDIVIDED = (4.0, 1.0), (5.0, None), (None, None)
IN_MEMORY = "no storage device is read: the samples are in memory"
IN_CACHE = "no storage device is read: the samples are in the page cache"
NOT_TIMED = "reading and preprocessing are not timed"


@pytest.mark.parametrize("section", ["epoch", "steady"])
@pytest.mark.parametrize(
    ("timers", "medium", "residency", "stalls", "reason"),
    [
        (TIMERS, "nvme", None, DIVIDED, None),
        (TIMERS, "nvme", 0.0, DIVIDED, None),
        (TIMERS, "network", 0.98, DIVIDED, None),
        (TIMERS, None, None, DIVIDED, None),
        ({}, "nvme", 0.0, UNDIVIDED, NOT_TIMED),
        ({}, None, None, UNDIVIDED, NOT_TIMED),
        ({**TIMERS, "loader_decode_s": None}, "nvme", 0.0, UNDIVIDED,
         "decoding is not timed, and may be part of reading"),
        (dict.fromkeys(TIMERS, 0.0), "nvme", 0.0, UNDIVIDED, "reading and preprocessing took no time"),
        # Nothing is fetched: the samples are in the process, in a file system in memory, or all in the page cache.
        (TIMERS, "memory", None, PREP, IN_MEMORY),
        (TIMERS, "ram", None, PREP, IN_MEMORY),
        (TIMERS, "nvme", 1.0, PREP, IN_CACHE),
        (TIMERS, "nvme", 0.9998, PREP, IN_CACHE),
        ({}, "nvme", 1.0, PREP, IN_CACHE),
        ({}, "synthetic", None, UNDIVIDED, "synthetic batches are neither read nor preprocessed"),
    ],
)  # fmt: skip
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
    for compute, copy, prep, fetch, differ, parts, stalls, equal in (
        (47, 0, 43, 8, "every", "prep", "fetch", True),
        (50, 0, 42, 7, "every", "compute prep", "fetch", True),
        (30, 0, 35.5, 34.5, "every", "prep fetch", "", True),
        (10, 0, 50, 40, "none", "prep compute", "", False),
        (10, 0, 50, 40, "compute", "prep fetch", "", False),
        (45, 44, 7, 4, "compute", "compute copy", "", True),
        (98, 0, 1.9, 0, "none", "compute", "", True),
    ):
        seconds = {"compute": compute, "copy": copy, "prep_stall": prep, "fetch_stall": fetch}
        found = find_bottleneck(seconds, 100.0, lambda *pair, differ=differ: differ == "every" or differ in pair)
        names = [" ".join(part.removesuffix("_stall") for part in own) for own in (found.parts, found.stalls)]
        assert (*names, found.equal) == (parts, stalls, equal)
