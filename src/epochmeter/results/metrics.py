"""Every metric: its name, its unit, how epochs of it are put together, and what it means.

This table is the project's public face; the README points to the page made of it, and a test holds both to it.
A metric whose source is missing is absent: it is never 0 and never NaN.
"""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    unit: str
    steady: str | None
    """How the measured epochs of a run become one `steady/` value: by their mean, as a ratio of sums, from
    their pooled steps, as the largest; None where there is no such value."""
    meaning: str


EPOCH = {
    "e2e_s": Metric("s", "mean", "wall time of the epoch, device synchronized before both ends"),
    "fetch_stall_s": Metric("s", "mean", "device idle that waiting for data explains"),
    "fetch_stall_model_s": Metric(
        "s", "mean", "the literature's model of it: sum over steps of max(read + preprocess - compute, 0)"
    ),
    "host_wait_s": Metric("s", "mean", "host time blocked in the loader, hidden or not"),
    "copy_s": Metric("s", "mean", "host-to-device copies, on the device's timeline"),
    "compute_s": Metric("s", "mean", "launch, forward, loss, backward, optimizer step, on the device's timeline"),
    "overhead_s": Metric("s", "mean", "the rest of the gaps between steps, and from the last step to the close"),
    "clock_residual_s": Metric("s", "mean", "e2e less the four parts: what the two clocks disagree by"),
    "loader_start_s": Metric("s", "mean", "of the stall: starting the loader and waiting for its first batch"),
    "loader_stop_s": Metric("s", "mean", "of the overhead: the loader's end"),
    "loader_read_s": Metric("s", "mean", "time in loader processes reading samples, summed over them"),
    "loader_preprocess_s": Metric("s", "mean", "time in them decoding, transforming and batching, summed likewise"),
    "loader_decode_s": Metric(
        "s", "mean", "of the preprocessing: decoding; absent where samples do not tell it from reading, which has it"
    ),
    "clock_waits": Metric("1", "mean", "marks that the host waited for, the ring of them full; absent on a CPU"),
    "steps": Metric("1", "mean", "batches trained on, those whose step fp16's scaler skips among them"),
    "samples": Metric("1", "mean", "samples really seen"),
    "skipped_samples": Metric("1", "mean", "bad samples left out, where dataset.on_bad=skip"),
    "samples_per_s": Metric("1/s", "ratio", "samples / e2e"),
    "step_p50_s": Metric("s", "pooled", "median time from step to step"),
    "step_p95_s": Metric("s", "pooled", "95th percentile of the time from step to step"),
    "step_p99_s": Metric("s", "pooled", "99th percentile of the time from step to step"),
    "energy_j": Metric("J", "mean", "gross energy: the module (Jetson), the GPUs used, or CPU packages and DRAM"),
    "energy_<domain>_j": Metric(
        "J", "mean", "energy of one domain: VDD_IN, gpu0, cpu0, dram0; gpu0_sampled checks gpu0"
    ),
    "energy_uncertainty_j": Metric("J", "mean", "half-width of the 95 % interval of energy_j"),
    "machine_energy_j": Metric("J", "mean", "GPUs and CPU together, where both are metered (meter=sum)"),
    "net_energy_j": Metric("J", "mean", "gross less idle power x energy window; may be negative"),
    "energy_per_sample_j": Metric("J", "ratio", "energy / samples"),
    "stall_energy_j": Metric("J", "mean", "energy used during fetch stall; all four phases together sum to gross"),
    "copy_energy_j": Metric("J", "mean", "energy used during copies"),
    "compute_energy_j": Metric("J", "mean", "energy used during compute"),
    "overhead_energy_j": Metric("J", "mean", "energy used during overhead"),
    "estimated_energy_j": Metric("J", "mean", "an estimate, where nothing measures"),
    "power_mean_w": Metric("W", "ratio", "energy / energy window"),
    "power_peak_w": Metric("W", "max", "largest sampled power of the total"),
    "power_samples": Metric("1", "mean", "samples of the total's power"),
    "power_gap_max_s": Metric("s", "max", "longest time between two of them"),
    "read_bytes": Metric("B", "mean", "read from the dataset's block device, by whoever read it"),
    "read_iops": Metric("1/s", "ratio", "its completed reads / e2e"),
    "read_bytes_per_s": Metric("B/s", "ratio", "read bytes / e2e"),
    "cached_share_before": Metric(
        "0..1", "mean", "share of the training files' pages in the page cache before the epoch"
    ),
    "cached_share_after": Metric("0..1", "mean", "the same after it"),
    "cpu_utilization": Metric("0..1", "mean", "busy share of all cores"),
    "gpu_utilization": Metric("0..1", "mean", "share of the time in which the GPU was busy, by its driver"),
    "gpu_clock_mean_hz": Metric("Hz", "mean", "mean of the GPU's clock"),
    "power_capped_fraction": Metric(
        "0..1", "mean", "fraction of the time in which a power limit or over-current lowered the device's clocks"
    ),
    "thermal_throttled_fraction": Metric(
        "0..1", "mean", "fraction of the time in which heat lowered the device's clocks"
    ),
    "temperature_max_c": Metric("C", "max", "hottest sensor of the device"),
    "ram_peak_bytes": Metric("B", "max", "most of the machine's memory in use"),
    "gpu_memory_peak_bytes": Metric("B", "max", "largest memory allocated on the accelerator within the epoch"),
    "learning_rate": Metric("1", "mean", "of the optimizer's first group of parameters in that epoch"),
    "train_loss": Metric(
        "1", "mean", "mean over the epoch's samples, while they are learned; with auxiliary outputs, theirs in it"
    ),
    "train_accuracy": Metric("0..1", "mean", "share of the epoch's samples classified rightly, while they are learned"),
}

VAL = {
    "e2e_s": Metric("s", None, "wall time of the evaluation after the epoch"),
    "loss": Metric("1", None, "mean over the validation samples"),
    "accuracy": Metric("0..1", None, "share of the validation samples classified rightly"),
    "skipped_samples": Metric("1", None, "bad samples left out of it, where dataset.on_bad=skip"),
    "read_bytes": Metric("B", None, "read from the dataset's block device during the evaluation"),
    "energy_j": Metric("J", None, "gross energy of the evaluation"),
    "net_energy_j": Metric("J", None, "gross less idle power x energy window; may be negative"),
    "estimated_energy_j": Metric("J", None, "its estimate, where nothing measures"),
}

RANK_MAX = {
    "<part>_s": Metric("s", None, "the largest over ranks of a time whose mean over ranks is epoch/<part>_s"),
}

TOTAL = {
    "e2e_s": Metric("s", None, "training and evaluation windows, epoch 0 included"),
    "energy_j": Metric("J", None, "gross energy of the same windows, however short each of them is"),
    "energy_uncertainty_j": Metric("J", None, "half-width of the 95 % interval of total/energy_j"),
    "estimated_energy_j": Metric("J", None, "its estimate, where nothing measures"),
    "net_energy_j": Metric("J", None, "the same windows' net energy"),
    "machine_energy_j": Metric("J", None, "the same windows' energy of GPUs and CPU together, where both are metered"),
    "read_bytes": Metric("B", None, "read from the dataset's block device in the same windows"),
    "edp_js": Metric("Js", None, "energy x time"),
    "idle_power_w": Metric("W", None, "power before training began, knobs held"),
    "idle_power_after_w": Metric("W", None, "power after it ended"),
    "power_limit_w": Metric("W", None, "the power limit really applied, where it is told in watts"),
    "power_limit_max_w": Metric("W", None, "the highest that the device takes, of a run that a limit was asked for"),
    "epochs": Metric("1", None, "epochs trained to their end"),
    "time_to_target_s": Metric("s", None, "windows up to the one that reached the target; absent if none did"),
    "energy_to_target_j": Metric("J", None, "energy of the same windows"),
    "epochs_to_target": Metric("1", None, "epochs up to the one that reached the target"),
}

MODEL = {
    "parameters": Metric("1", None, "trained parameters"),
    "flops_per_sample": Metric("1", None, "floating-point operations to learn from a sample, as torch counts them"),
    "weight_bytes": Metric("B", None, "memory of the parameters and buffers"),
    "gradient_bytes": Metric("B", None, "memory of the gradients"),
    "optimizer_bytes": Metric("B", None, "memory of what the optimizer keeps from step to step"),
    "activation_bytes": Metric("B", None, "memory of what a batch's forward pass keeps for the way back, in fp32"),
}


def _named(section: str, table: dict[str, Metric]) -> dict[str, Metric]:
    return {f"{section}/{name}": metric for name, metric in table.items()}


POWER = {
    "total_w": Metric("W", None, "sampled power of the total over the run, thinned; all samples are in power.csv"),
}

STEP = {
    "train_loss": Metric("1", None, "mean over up to 100 steps, at the last of them; that of each is in losses.bin"),
}

THROUGHPUT = {
    "samples_per_s": Metric(
        "1/s", None, "samples of the steps from throughput.start up to throughput.stop / the time of these steps"
    ),
    "samples": Metric("1", None, "samples of these steps, of all ranks"),
    "steps": Metric("1", None, "how many they are, of all epochs'"),
    "e2e_s": Metric("s", None, "their time, each from the last one's end to its own: nothing between epochs is in it"),
    "step_mean_s": Metric("s", None, "time / steps"),
}

METRICS: dict[str, Metric] = {
    **_named("epoch", EPOCH),
    **_named("rank_max", RANK_MAX),
    **_named("val", VAL),
    **_named("total", TOTAL),
    **_named("model", MODEL),
    **_named("power", POWER),
    **_named("step", STEP),
    **_named("throughput", THROUGHPUT),
}
"""Full name -> metric. Beside these, `steady/<name>` and `spread/<name>` stand for the epochs of a run."""


def markdown() -> str:
    """The table as the page docs/metrics.md shows it."""
    lines = ["| metric | unit | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {metric.unit} | {metric.meaning} |" for name, metric in METRICS.items()]
    return "\n".join(lines) + "\n"
