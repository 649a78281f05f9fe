"""The table of all metrics: name, unit, aggregation over epochs, and meaning; docs/metrics.md shows it.

A metric that could not be measured is absent: it is never 0 and never NaN.
"""

from __future__ import annotations

from typing import NamedTuple

STEADY = {"mean": "mean", "ratio": "ratio of sums", "pooled": "of all steps", "max": "maximum", None: ""}
"""Aggregation over the steady epochs -> its name on the page."""


class Metric(NamedTuple):
    """One metric, without its name.

    Attributes:
        unit: SI unit, `1` for counts and ratios, or `0..1` for fractions.
        steady: Aggregation of the epochs after warm-up to the `steady/` value: `mean`, `ratio` (of sums), `pooled`
            (percentile of the steps of all these epochs) or `max`; None if there is no `steady/` value.
        meaning: Definition for readers.
    """

    unit: str
    steady: str | None
    meaning: str


# fmt: off
EPOCH = {
    "e2e_s": Metric("s", "mean", "end-to-end wall time of the training epoch; the device is synchronized before both "
        "ends"),
    "data_stall_s": Metric("s", "mean", "data stall: device idle time explained by waiting for data; per step min(idle "
        "gap, host wait)"),
    "data_stall_model_s": Metric("s", "mean", "data stall by the model in the literature: sum over steps of max(read + "
        "preprocess - compute, 0)"),
    "host_wait_s": Metric("s", "mean", "time that the host waits for batches, including waits overlapped by device "
        "work"),
    "copy_s": Metric("s", "mean", "host-to-device copy time on the device's timeline"),
    "compute_s": Metric("s", "mean", "compute time on the device's timeline: kernel launch, forward, loss, backward, "
        "optimizer step"),
    "overhead_s": Metric("s", "mean", "other device idle time: gaps between steps that waiting for data does not "
        "explain, and the end of the epoch"),
    "clock_residual_s": Metric("s", "mean", "e2e_s minus data stall, copy, compute and overhead: the disagreement of "
        "host clock and device timeline"),
    "loader_start_s": Metric("s", "mean", "part of the data stall: start of the DataLoader and wait for its first "
        "batch"),
    "loader_stop_s": Metric("s", "mean", "part of the overhead: end of the DataLoader's pass"),
    "loader_read_s": Metric("s", "mean", "time that DataLoader workers spent reading samples, summed over workers"),
    "loader_preprocess_s": Metric("s", "mean", "time that DataLoader workers spent decoding, transforming and "
        "collating samples, summed over workers"),
    "loader_decode_s": Metric("s", "mean", "part of loader_preprocess_s: decoding; absent if the dataset decodes while "
        "reading (then in loader_read_s)"),
    "clock_waits": Metric("1", "mean", "number of times the host waited for an old timestamp because too many were "
        "pending; absent on a CPU"),
    "steps": Metric("1", "mean", "number of training steps, including steps that the fp16 gradient scaler skipped"),
    "samples": Metric("1", "mean", "number of samples trained on"),
    "skipped_samples": Metric("1", "mean", "number of unreadable samples that were skipped (dataset.on_bad=skip)"),
    "samples_per_s": Metric("1/s", "ratio", "throughput: samples / e2e_s"),
    "step_p50_s": Metric("s", "pooled", "median step time, from the end of one step to the end of the next"),
    "step_p95_s": Metric("s", "pooled", "95th percentile of the step time"),
    "step_p99_s": Metric("s", "pooled", "99th percentile of the step time"),
    "energy_j": Metric("J", "mean", "gross energy: of the module (Jetson), of the GPUs used, or of CPU packages and "
        "DRAM"),
    "energy_<domain>_j": Metric("J", "mean", "energy of one domain, such as VDD_IN, gpu0, cpu0 or dram0; gpu0_sampled "
        "cross-checks gpu0"),
    "energy_uncertainty_j": Metric("J", "mean", "95 % confidence interval of energy_j (plus or minus)"),
    "machine_energy_j": Metric("J", "mean", "energy of GPUs and CPU together, if both are measured (meter=sum)"),
    "net_energy_j": Metric("J", "mean", "net energy: energy_j minus idle power x duration of the energy window; may be "
        "negative"),
    "energy_per_sample_j": Metric("J", "ratio", "energy_j / samples"),
    "stall_energy_j": Metric("J", "mean", "energy used during data stalls; the four phases sum to energy_j"),
    "copy_energy_j": Metric("J", "mean", "energy used during host-to-device copies"),
    "compute_energy_j": Metric("J", "mean", "energy used during compute"),
    "overhead_energy_j": Metric("J", "mean", "energy used during overhead"),
    "estimated_energy_j": Metric("J", "mean", "estimated energy, if the machine cannot measure it"),
    "power_mean_w": Metric("W", "ratio", "mean power: energy_j / duration of the energy window"),
    "power_peak_w": Metric("W", "max", "largest sample of the total power"),
    "power_samples": Metric("1", "mean", "number of samples of the total power"),
    "power_gap_max_s": Metric("s", "max", "longest time between two samples of the total power"),
    "read_bytes": Metric("B", "mean", "data read from the dataset's block device, by any process"),
    "read_iops": Metric("1/s", "ratio", "completed read operations of the dataset's block device / e2e_s"),
    "read_bytes_per_s": Metric("B/s", "ratio", "read_bytes / e2e_s"),
    "page_cache_residency_before": Metric("0..1", "mean", "page-cache residency before the epoch: cached fraction of "
        "the training files' pages"),
    "page_cache_residency_after": Metric("0..1", "mean", "page-cache residency after the epoch"),
    "cpu_utilization": Metric("0..1", "mean", "fraction of time in which the CPU cores were busy, mean over all cores"),
    "gpu_utilization": Metric("0..1", "mean", "fraction of time in which the GPU was busy, as reported by its driver"),
    "gpu_clock_mean_hz": Metric("Hz", "mean", "mean clock frequency of the GPU"),
    "power_capped_fraction": Metric("0..1", "mean", "fraction of time in which a power limit or over-current lowered "
        "the device's clocks"),
    "thermal_throttled_fraction": Metric("0..1", "mean", "fraction of time in which thermal throttling lowered the "
        "device's clocks"),
    "temperature_max_c": Metric("C", "max", "temperature of the device's hottest sensor"),
    "ram_peak_bytes": Metric("B", "max", "peak memory in use on the machine"),
    "gpu_memory_peak_bytes": Metric("B", "max", "peak memory allocated on the accelerator by PyTorch"),
    "learning_rate": Metric("1", "mean", "learning rate of the optimizer's first parameter group"),
    "train_loss": Metric("1", "mean", "training loss, mean over the epoch's samples; includes auxiliary losses"),
    "train_accuracy": Metric("0..1", "mean", "top-1 accuracy on the training samples, measured while training"),
}
VAL = {
    "e2e_s": Metric("s", None, "end-to-end wall time of the evaluation after the epoch"),
    "loss": Metric("1", None, "validation loss, mean over the validation samples"),
    "accuracy": Metric("0..1", None, "top-1 accuracy on the validation samples"),
    "skipped_samples": Metric("1", None, "number of unreadable samples that were skipped (dataset.on_bad=skip)"),
    "read_bytes": Metric("B", None, "data read from the dataset's block device during the evaluation"),
    "energy_j": Metric("J", None, "gross energy of the evaluation"),
    "net_energy_j": Metric("J", None, "net energy: val/energy_j minus idle power x duration of the energy window; may "
        "be negative"),
    "estimated_energy_j": Metric("J", None, "estimated energy, if the machine cannot measure it"),
}
RANK_MAX = {
    "<part>_s": Metric("s", None, "largest value over ranks of a time whose mean over ranks is epoch/<part>_s"),
}
TOTAL = {
    "e2e_s": Metric("s", None, "sum over all training and evaluation windows, including warm-up"),
    "energy_j": Metric("J", None, "gross energy of these windows, including windows too short for an energy of their "
        "own"),
    "energy_uncertainty_j": Metric("J", None, "95 % confidence interval of total/energy_j (plus or minus)"),
    "estimated_energy_j": Metric("J", None, "estimated energy of these windows, if the machine cannot measure it"),
    "net_energy_j": Metric("J", None, "net energy of these windows: gross energy minus idle power x time"),
    "machine_energy_j": Metric("J", None, "energy of GPUs and CPU together in these windows, if both are measured "
        "(meter=sum)"),
    "read_bytes": Metric("B", None, "data read from the dataset's block device in these windows"),
    "edp_js": Metric("Js", None, "energy-delay product: total/energy_j x total/e2e_s"),
    "idle_power_w": Metric("W", None, "idle power before training, with the run's device settings applied"),
    "idle_power_after_w": Metric("W", None, "idle power after training, with the run's device settings applied"),
    "power_limit_w": Metric("W", None, "applied power limit, if the device has limits in watts"),
    "power_limit_max_w": Metric("W", None, "largest power limit that the device accepts; only for runs with "
        "power_limit="),
    "epochs": Metric("1", None, "number of completed training epochs"),
    "time_to_target_s": Metric("s", None, "time to accuracy (or loss): total/e2e_s up to the window that reached the "
        "target; absent if none did"),
    "energy_to_target_j": Metric("J", None, "energy to accuracy (or loss): gross energy of the same windows"),
    "epochs_to_target": Metric("1", None, "number of epochs up to the window that reached the target"),
}
MODEL = {
    "parameters": Metric("1", None, "number of trainable parameters"),
    "flops_per_sample": Metric("1", None, "training FLOPs per sample (forward + backward), as counted by PyTorch"),
    "weight_bytes": Metric("B", None, "memory of parameters and buffers"),
    "gradient_bytes": Metric("B", None, "memory of the gradients"),
    "optimizer_bytes": Metric("B", None, "memory of the optimizer's state"),
    "activation_bytes": Metric("B", None, "memory of the activations that one batch keeps for the backward pass, in "
        "fp32"),
}
POWER = {
    "total_w": Metric("W", None, "total power over the run, thinned; power.csv has all samples"),
}
STEP = {
    "train_loss": Metric("1", None, "training loss, mean over up to 100 steps, at the last of them; losses.bin has "
        "every step"),
}
THROUGHPUT = {
    "samples_per_s": Metric("1/s", None, "throughput between throughput.start and throughput.stop: samples / time of "
        "these steps"),
    "samples": Metric("1", None, "number of samples in these steps, summed over ranks"),
    "steps": Metric("1", None, "number of these steps, over all epochs"),
    "e2e_s": Metric("s", None, "time of these steps, each from the end of the step before; excludes time between "
        "epochs"),
    "step_mean_s": Metric("s", None, "mean step time: throughput/e2e_s / steps"),
}
# fmt: on

SECTIONS = {
    "epoch": EPOCH,
    "rank_max": RANK_MAX,
    "val": VAL,
    "total": TOTAL,
    "model": MODEL,
    "power": POWER,
    "step": STEP,
    "throughput": THROUGHPUT,
}
METRICS = {f"{section}/{name}": metric for section, metrics in SECTIONS.items() for name, metric in metrics.items()}
"""Full name -> metric. Each `epoch/<name>` also has `steady/<name>` and `std/<name>`, which are not listed."""


def markdown() -> str:
    """Return the table in docs/metrics.md."""
    rows = [
        f"| `{name}` | {metric.unit} | {STEADY[metric.steady]} | {metric.meaning} |\n"
        for name, metric in METRICS.items()
    ]
    return "".join(["| metric | unit | steady value | meaning |\n", "| --- | --- | --- | --- |\n", *rows])
