"""The bottleneck of an epoch: its largest part."""

import pytest

from epochmeter.results.bottleneck import find_bottleneck, part_seconds


def test_largest_part_is_the_bottleneck_and_smaller_stalls_are_listed():
    for seconds, parts, *stalls in (
        ({"compute": 9.5, "prep_stall": 0.36, "fetch_stall": 0.14}, ("compute",), "prep_stall"),
        ({"compute": 1.0, "fetch_stall": 2.0, "prep_stall": 7.0}, ("prep_stall",), "fetch_stall"),
        ({"compute": 1.0, "copy": 6.0, "overhead": 3.0}, ("copy",)),
        ({"compute": 4.6, "prep_stall": 4.5, "fetch_stall": 0.9}, ("compute", "prep_stall"), "fetch_stall"),
        ({"compute": 5.2, "prep_stall": 4.8}, ("compute",), "prep_stall"),
        ({"compute": 6.0}, ("compute",)),
    ):
        found = find_bottleneck(seconds, 10.0)
        assert (found.parts, found.stalls) == (parts, tuple(stalls))
        assert found.equal or len(found.parts) == 1


def test_insignificant_differences_and_unmeasured_parts_can_make_it_undecided():
    two = {"compute": 6.0, "prep_stall": 4.0}
    found = find_bottleneck(two, 10.0, lambda part, other: other is None)
    assert (found.parts, found.stalls, found.equal) == (("compute", "prep_stall"), (), False)
    found = find_bottleneck(two, 10.0, lambda part, other: other is not None)
    assert (found.parts, found.stalls) == (("compute",), ())
    assert find_bottleneck({"compute": 4.0}, 10.0) is find_bottleneck({}, 10.0) is None
    assert find_bottleneck({"compute": 9.9, "overhead": -0.1}, 10.0).fractions == {"compute": 0.99, "overhead": 0.0}


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
