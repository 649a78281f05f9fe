"""Parts of an epoch. Their bottleneck is on the golden pages of stall experiments and configurations."""

import pytest

from epochmeter.results.bottleneck import part_seconds


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
