"""Sentences at the end of a run."""

from epochmeter.console import sentences
from epochmeter.results.bottleneck import find_verdict, read_bottleneck


def steady(**metrics):
    return {f"steady/{name}": value for name, value in metrics.items()}


def test_sentences_have_the_available_metrics():
    energy = {"total/energy_j": 1406.0, "total/energy_uncertainty_j": 506.0}

    def net(joules, uncertainty_j):
        return {**energy, "total/net_energy_j": joules, "total/net_energy_uncertainty_j": uncertainty_j}

    target = {"total/epochs_to_target": 1, "total/time_to_target_s": 2.5}
    rough = {"forecast/e2e_s": 6.62, "forecast/e2e_uncertainty_s": 1.26}
    exact = {"forecast/e2e_s": 3661.0, "forecast/e2e_uncertainty_s": 0.0463}
    paid = {**exact, "forecast/cost": 0.61, "forecast/cost_uncertainty": 0.0123}
    spent, reached = "Energy of epochs and evaluations: 1.41 kJ ± 36 %", "Target reached after 1 epoch: 2.500 s"
    for line, expected in (
        (sentences.bottleneck_line(None), ""),
        (sentences.energy_line({"total/energy_j": 1406.0}), ""),
        (sentences.energy_line(energy), f"{spent}."),
        (sentences.energy_line({**energy, "total/net_energy_j": 71.82}), f"{spent}."),
        (sentences.energy_line(net(671.82, 506.4)), f"{spent}, 672 ± 506 J above idle."),
        (sentences.energy_line(net(71.82, 0.514)), f"{spent}, 71.82 ± 0.51 J above idle."),
        (sentences.energy_line(net(0.000661, 19.0)), f"{spent}, not distinguishable from idle (0 ± 19 J)."),
        (sentences.energy_line(net(-0.3, 19.0)), f"{spent}, not distinguishable from idle (0 ± 19 J)."),
        (sentences.energy_line(net(-18.6, 19.0)), f"{spent}, not distinguishable from idle (-19 ± 19 J)."),
        (sentences.energy_line(net(-50.2, 19.0)), f"{spent}, 50 ± 19 J below idle."),
        (sentences.target_line({}), ""),
        (sentences.target_line(target), f"{reached}."),
        (sentences.target_line({**target, "total/energy_to_target_j": 30.0}), f"{reached}, 30.0 J."),
        (
            sentences.target_line({**target, "total/estimated_energy_to_target_j": 30.0}),
            f"{reached}, 30.0 J (estimated).",
        ),
        (sentences.forecast_text(rough), "forecast total 6.6 ± 1.3 s"),
        (sentences.forecast_text(paid, "EUR"), "forecast total 61.01667 ± 0.00077 min, 0.610 ± 0.012 EUR"),
    ):
        assert line == expected


def test_compute_is_divided_into_phases_that_are_large_enough():
    phases = {"forward_s": 0.31, "loss_s": 0.001, "backward_s": 0.58, "optimizer_s": 0.09, "other_compute_s": 0.019}
    line = sentences.phases_line(steady(compute_s=1.0, preparation_s=0.0, **phases))
    assert line == "Compute: forward 31 %, backward 58 %, optimizer 9.0 %, other 2.0 %."
    assert sentences.phases_line(steady(compute_s=1.0, other_compute_s=1.0)) == ""
    assert sentences.phases_line(steady(compute_s=1.0)) == ""


def test_evaluations_and_named_windows_have_their_mean_time_and_energy():
    def window(name, **metrics):
        return {"window": name, "metrics": {f"{name}/{metric}": value for metric, value in metrics.items()}}

    windows = [window("load", e2e_s=2.0, energy_j=30.0), window("save", e2e_s=1.0, energy_j=3.0)]
    windows += [window("epoch", e2e_s=9.0), window("val", e2e_s=0.3, loss=0.5), window("save", e2e_s=2.0)]
    lines = ["load: 2.000 s, 30.0 J.", "save: mean of 2: 1.500 s.", "Evaluation: 0.300 s."]
    assert sentences.other_window_lines(windows) == lines


def test_line_of_a_process_has_the_energy_that_is_measured_or_estimated():
    windows = [{"window": "process", "metrics": {"process/estimated_energy_j": joules}} for joules in (60.0, 40.0)]
    account = {"run/window_s": 50.0}
    energy = {"run/energy_j": 110.0, "run/energy_uncertainty_j": 2.2, "run/window_energy_j": 100.0}
    found = [
        sentences.process_line(windows, {**account, **energy}, 7),
        sentences.process_line(windows, account, 7),
        sentences.process_line([{"window": "process", "metrics": {}}], account, 7),
        sentences.process_line([], {}, 7),
    ]
    assert found == [
        "Process 7, measured for 50.0 s: 110 J ± 2.0 %, 2.00 W on average.",
        "Process 7, measured for 50.0 s: 100 J, estimated.",
        "Process 7, measured for 50.0 s.",
        "",
    ]


def sentence(metrics, medium):
    verdict = find_verdict(metrics, medium, "steady")
    return sentences.bottleneck_line(read_bottleneck(verdict.bottleneck, {**metrics, **verdict.metrics}))


def test_bottleneck_and_data_stalls_are_fractions_of_the_epoch_time():
    """1.69 s per epoch with 0.01 s of fetch and 0.06 s of prep stall is compute."""
    metrics = steady(e2e_s=1.69, compute_s=1.61, copy_s=0.0, overhead_s=0.01, data_stall_s=0.07,
                     loader_read_s=0.1, loader_preprocess_s=0.6, loader_decode_s=0.5)  # fmt: skip
    line = "Bottleneck: compute-bound. Epoch time: compute 95 %, data stalls 4.1 %"
    assert sentence(metrics, "nvme") == f"{line}.", "a fetch stall below 2 % is not named"
    assert sentence(metrics, "ram") == f"{line}."
    equal = steady(e2e_s=1.0, compute_s=0.5, data_stall_s=0.49, copy_s=0.0, overhead_s=0.01)
    line = "Bottleneck: compute-bound or prep-bound (about equal). Epoch time: compute 50 %, data stalls 49 %."
    assert sentence(equal, "ram") == line
    halves = {**metrics, "steady/compute_s": 0.81, "steady/data_stall_s": 0.87}
    line = "Bottleneck: prep-bound. Epoch time: data stalls 51 % (prep stall 44 %, fetch stall 7.4 %), compute 48 %."
    assert sentence(halves, "nvme") == line
    waiting = steady(e2e_s=1.0, compute_s=0.3, data_stall_s=0.1, copy_s=0.6, overhead_s=0.0)
    assert sentence(waiting, "ram") == "Bottleneck: copy-bound. Epoch time: copy 60 %, data stalls 10 %, compute 30 %."
    alone = steady(e2e_s=1.0, compute_s=0.99, data_stall_s=0.01, copy_s=0.0, overhead_s=0.0)
    assert sentence(alone, "ram") == "Bottleneck: compute-bound. Epoch time: compute 99 %, data stalls 1.0 %."
