"""Every metric: its name, its unit, how epochs of it are put together, and what it means.

This table is the project's public face; the README points to the page made of it, and a test holds both to it.
A metric whose source is missing is absent: it is never 0 and never NaN.
"""

from __future__ import annotations

from typing import NamedTuple

NANOSECOND = 1e-9
"""In seconds."""


class Metric(NamedTuple):
    unit: str
    steady: str | None
    """How the measured epochs of a run become one `steady/` value: by their mean, as a ratio of sums, from
    their pooled steps, as the largest; None where there is no such value."""
    meaning: str


EPOCH = {
    "e2e_s": Metric("s", "mean", "wall time of the epoch, device synchronized before both ends"),
    "fetch_stall_s": Metric("s", "mean", "device idle that waiting for data explains"),
    "host_wait_s": Metric("s", "mean", "host time blocked in the loader, hidden or not"),
    "copy_s": Metric("s", "mean", "host-to-device copies, on the device's timeline"),
    "compute_s": Metric("s", "mean", "launch, forward, loss, backward, optimizer step, on the device's timeline"),
    "overhead_s": Metric("s", "mean", "the rest of the gaps between steps, and from the last step to the close"),
    "clock_residual_s": Metric("s", "mean", "e2e less the four parts: what the two clocks disagree by"),
    "loader_start_s": Metric("s", "mean", "of the stall: starting the loader and waiting for its first batch"),
    "loader_stop_s": Metric("s", "mean", "of the overhead: the loader's end"),
    "clock_waits": Metric("1", "mean", "marks that the host waited for, the ring of them full; absent on a CPU"),
    "steps": Metric("1", "mean", "optimizer steps"),
    "samples": Metric("1", "mean", "samples really seen"),
    "samples_per_s": Metric("1/s", "ratio", "samples / e2e"),
    "step_p50_s": Metric("s", "pooled", "median time from step to step"),
    "step_p95_s": Metric("s", "pooled", "95th percentile of the time from step to step"),
    "step_p99_s": Metric("s", "pooled", "99th percentile of the time from step to step"),
    "energy_j": Metric("J", "mean", "gross energy of what the meter covers: the GPUs used, or CPU packages and DRAM"),
    "energy_<domain>_j": Metric("J", "mean", "energy of one domain: gpu0, cpu0, dram0"),
    "energy_per_sample_j": Metric("J", "ratio", "energy / samples"),
    "estimated_energy_j": Metric("J", "mean", "an estimate, where nothing measures"),
    "power_mean_w": Metric("W", "ratio", "energy / energy window"),
    "gpu_memory_peak_bytes": Metric("B", "max", "largest memory allocated on the accelerator within the epoch"),
    "train_loss": Metric("1", "mean", "mean over the epoch's samples, while they are learned"),
    "train_accuracy": Metric("0..1", "mean", "share of the epoch's samples classified rightly, while they are learned"),
}

VAL = {
    "e2e_s": Metric("s", "mean", "wall time of the evaluation after the epoch"),
    "loss": Metric("1", None, "mean over the validation samples"),
    "accuracy": Metric("0..1", None, "share of the validation samples classified rightly"),
    "energy_j": Metric("J", "mean", "gross energy of the evaluation"),
    "estimated_energy_j": Metric("J", "mean", "its estimate, where nothing measures"),
}

TOTAL = {
    "e2e_s": Metric("s", None, "training and evaluation windows, epoch 0 included"),
    "energy_j": Metric("J", None, "gross energy of the same windows"),
    "estimated_energy_j": Metric("J", None, "its estimate, where nothing measures"),
    "edp_js": Metric("Js", None, "energy x time"),
    "epochs": Metric("1", None, "epochs trained"),
    "time_to_target_s": Metric("s", None, "windows up to the one that reached the target; absent if none did"),
    "energy_to_target_j": Metric("J", None, "energy of the same windows"),
    "epochs_to_target": Metric("1", None, "epochs up to the one that reached the target"),
}

MODEL = {
    "parameters": Metric("1", None, "trained parameters"),
    "weight_bytes": Metric("B", None, "memory of the parameters and buffers"),
}


def _named(section: str, table: dict[str, Metric]) -> dict[str, Metric]:
    return {f"{section}/{name}": metric for name, metric in table.items()}


METRICS: dict[str, Metric] = {
    **_named("epoch", EPOCH),
    **_named("val", VAL),
    **_named("total", TOTAL),
    **_named("model", MODEL),
}
"""Full name -> metric. Beside these, `steady/<name>` and `spread/<name>` stand for the epochs of a run."""


def markdown() -> str:
    """The table as the page docs/metrics.md shows it."""
    lines = ["| metric | unit | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {metric.unit} | {metric.meaning} |" for name, metric in METRICS.items()]
    return "\n".join(lines) + "\n"
