"""The result of a run in a line."""

import pytest

from epochmeter.results.headline import headline

MEAN = {"steady/e2e_s": 1.234, "steady/data_stall_s": 0.9, "steady/compute_s": 0.3, "total/e2e_s": 7.5}


@pytest.mark.parametrize(
    ("metrics", "bottleneck", "texts"),
    [
        ({**MEAN, "steady/energy_j": 53.14}, "data_stall", ["1.23 s per epoch", "53.1 J", "data-bound"]),
        ({**MEAN, "steady/estimated_energy_j": 53.14}, "", ["1.23 s per epoch", "53.1 J (estimated)"]),
        ({**MEAN, "steady/energy_j": None}, "", ["1.23 s per epoch"]),
        ({"total/e2e_s": 7.5, "total/energy_j": 9.0}, "", ["7.50 s in total", "9.00 J"]),
        ({"steady/e2e_s": None}, "compute", []),
        ({}, "", []),
    ],
)
def test_result_is_the_mean_epoch_else_the_whole_run(metrics, bottleneck, texts):
    assert headline(metrics, bottleneck) == texts
