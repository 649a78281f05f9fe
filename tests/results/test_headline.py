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
        (
            {**MEAN, "steady/energy_j": 53.14, "steady/energy_uncertainty_j": 2.0},
            "",
            ["1.23 s per epoch", "53.1 J ± 3.8 %"],
        ),
        ({"total/e2e_s": 7.5, "total/energy_j": 9.0}, "", ["7.50 s in total", "9.00 J"]),
        ({"steady/e2e_s": None}, "compute", []),
        ({}, "", []),
    ],
)
def test_result_is_the_mean_epoch_else_the_whole_run(metrics, bottleneck, texts):
    assert headline(metrics, bottleneck) == texts


def test_mean_epoch_has_the_interval_of_its_epochs():
    """12.71 x 0.0283 / sqrt(2) = 0.254 s, which is 21 % and supports two decimals."""
    epochs = [{"epoch/e2e_s": time_s} for time_s in (1.214, 1.254)]
    assert headline(MEAN, "", epochs) == ["1.23 s ± 21 % per epoch"]
    assert headline({"total/e2e_s": 7.5}, "", epochs) == ["7.50 s in total"]
    assert headline(MEAN, "", epochs[:1]) == ["1.23 s per epoch"]
