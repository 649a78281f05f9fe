"""Sentences at the end of a run; the tables are tested in test_console.py, as they are printed."""

from epochmeter.console.tables import (
    bottleneck_line,
    data_line,
    energy_line,
    named_window_lines,
    target_line,
    throughput_line,
)


def test_missing_metrics_give_no_sentence():
    lines = [data_line({}), throughput_line({"steady/e2e_s": 1.0}), target_line([], {"total/epochs": 2})]
    assert [*lines, energy_line({"total/energy_j": 1406.0}), bottleneck_line({}, in_memory=False)] == [""] * 5


def test_energy_of_the_run_has_its_uncertainty():
    metrics = {"total/energy_j": 1406.0, "total/energy_uncertainty_j": 506.0}
    assert energy_line(metrics) == "Energy of the whole run: 1406 J (± 36 %)."
    assert energy_line({**metrics, "total/net_energy_j": 71.82}).endswith("(± 36 %), 71.8 J above idle.")


def test_data_loading_is_described_as_far_as_it_was_measured():
    metrics = {"loader_read_s": 0.5, "loader_preprocess_s": 0.2, "read_bytes": 2e6, "page_cache_residency_before": 0.25}
    metrics = {f"steady/{name}": value for name, value in metrics.items()}
    assert data_line(metrics) == (
        "DataLoader workers: 0.500 s reading, 0.200 s preprocessing per epoch, summed over workers. "
        "Disk: 2.0 MB read per epoch, by all processes. Dataset in the page cache: 25 % before the epoch."
    )


def test_target_is_printed_with_its_score_time_and_energy():
    windows = [
        {"window": "epoch", "epoch": 0, "metrics": {"epoch/train_accuracy": 0.5}},
        {"window": "val", "epoch": 0, "metrics": {"val/accuracy": 0.75}},
    ]
    metrics = {"total/epochs_to_target": 1, "total/time_to_target_s": 2.5}
    assert target_line(windows, metrics) == "Target reached after 1 epoch: 2.500 s (validation accuracy 75.0 %)."
    metrics["total/energy_to_target_j"] = 30.0
    assert "2.500 s, 30.0 J (" in target_line(windows, metrics)


def test_named_windows_have_their_mean_time_and_energy():
    def window(name, **metrics):
        return {"window": name, "metrics": {f"{name}/{metric}": value for metric, value in metrics.items()}}

    windows = [window("load", e2e_s=2.0, energy_j=30.0), window("save", e2e_s=1.0, energy_j=3.0)]
    windows += [window("epoch", e2e_s=9.0), window("save", e2e_s=2.0)]
    assert named_window_lines(windows) == ["load: 2.000 s, 30 J.", "save: mean of 2: 1.500 s."]


def test_bottleneck_and_data_stalls_are_fractions_of_the_epoch_time():
    """1.69 s per epoch with 0.01 s of fetch and 0.06 s of prep stall is compute."""
    metrics = {"e2e_s": 1.69, "compute_s": 1.61, "copy_s": 0.0, "overhead_s": 0.01, "data_stall_s": 0.07,
               "loader_read_s": 0.1, "loader_preprocess_s": 0.6, "loader_decode_s": 0.5}  # fmt: skip
    steady = {f"steady/{name}": value for name, value in metrics.items()}
    compute = "Bottleneck: compute-bound, 95 % of epoch time."
    assert (
        bottleneck_line(steady, in_memory=False)
        == f"{compute} Data stalls: 4.1 % (prep stall 3.6 %, fetch stall 0.6 %)."
    )
    assert bottleneck_line(steady, in_memory=True) == f"{compute} Data stalls: 4.1 %."


def test_parts_of_about_equal_time_are_both_the_bottleneck():
    steady = {"steady/e2e_s": 1.0, "steady/compute_s": 0.5, "steady/data_stall_s": 0.49, "steady/copy_s": 0.0,
              "steady/overhead_s": 0.01}  # fmt: skip
    assert bottleneck_line(steady, in_memory=True).startswith(
        "Bottleneck: compute-bound or prep-bound (about equal), 50 % and 49 % of epoch time."
    )
