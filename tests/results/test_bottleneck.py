"""Parts of an epoch. Their bottleneck is on the golden pages of stall experiments and configurations."""

import pytest

from epochmeter.results.bottleneck import find_bottleneck, part_seconds


def test_data_stall_is_divided_by_loader_times_with_decoding():
    device, timers = {"compute": 4.0, "copy": 0.0, "overhead": 1.0}, {"read": 3.0, "preprocess": 12.0, "decode": 8.0}
    undivided, halves = {"data_stall": 5.0}, {"fetch_stall": 1.0, "prep_stall": 4.0}
    for times, in_memory, stalls in (
        (timers, False, halves), (timers, True, {"prep_stall": 5.0}), ({}, False, undivided),
        ({"read": 3.0, "preprocess": 12.0}, False, undivided), (dict.fromkeys(timers, 0.0), False, undivided),
    ):  # fmt: skip
        metrics = {f"steady/{name}_s": value for name, value in {**device, "data_stall": 5.0}.items()}
        metrics |= {f"steady/loader_{name}_s": value for name, value in times.items()}
        assert part_seconds(metrics, in_memory=in_memory) == pytest.approx({**device, **stalls})


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
