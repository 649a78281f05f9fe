"""Sentences at the end of a run; its tables are looked at in tests/test_terminal.py, as they are printed."""

from epochmeter.console.tables import bottleneck, data, target, throughput


def test_what_was_not_measured_is_not_told():
    assert data({}) == ""
    assert throughput({"steady/e2e_s": 1.0}) == ""
    assert target([], {"total/epochs": 2}) == ""


def test_where_samples_came_from_is_told_as_far_as_it_is_known():
    metrics = {"steady/loader_read_s": 0.5, "steady/read_bytes": 2_000_000, "steady/cached_share_before": 0.25}
    assert data(metrics) == (
        "Data of a steady epoch: 0.500 s reading, 2.0 MB read from its disk, by whatever process, "
        "25% in the page cache before."
    )


def test_a_target_is_told_with_what_reached_it_and_what_that_cost():
    windows = [
        {"window": "epoch", "epoch": 0, "metrics": {"epoch/train_accuracy": 0.5}},
        {"window": "val", "epoch": 0, "metrics": {"val/accuracy": 0.75}},
    ]
    metrics = {"total/epochs_to_target": 1, "total/time_to_target_s": 2.5}
    assert target(windows, metrics) == "The target was reached after 1 epoch, in 2.500 s (val/accuracy 0.7500)."
    metrics["total/energy_to_target_j"] = 30.0
    assert "in 2.500 s and 30.0 J (" in target(windows, metrics)


def test_the_bottleneck_of_a_run_is_worded_as_in_the_report():
    """1.69 s per epoch with 0.01 s of fetch and 0.06 s of prep stall is compute."""
    metrics = {"e2e_s": 1.69, "compute_s": 1.61, "copy_s": 0.0, "overhead_s": 0.01, "fetch_stall_s": 0.07,
               "loader_read_s": 0.1, "loader_preprocess_s": 0.6, "loader_decode_s": 0.5}  # fmt: skip
    steady = {f"steady/{name}": value for name, value in metrics.items()}
    assert bottleneck(steady, in_memory=False) == "Bottleneck: compute-bound; 3.6 % prep stall."
    assert bottleneck(steady, in_memory=True) == "Bottleneck: compute-bound; 4.1 % prep stall."
    assert bottleneck({}, in_memory=False) == ""
