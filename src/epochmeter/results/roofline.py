"""Utilization of the device by its measured peaks, and the bound of an epoch by the roofline model.

The model is that of S. Williams, A. Waterman, D. Patterson, Roofline: an insightful visual performance model, CACM
52(4), 2009, with two further bounds: calls of operators, and waiting for data. MFU and HFU are those of A. Chowdhery
et al., PaLM, 2022, appendix B: the FLOPs of a convention, or the executed FLOPs, divided by time and peak.
"""

import re
from collections.abc import Mapping
from typing import Literal

from epochmeter.results.run_info import RunInfo, Training

GIGA = 1e9
TERA = 1e12
DATASHEETS: Mapping[str, Mapping[str, float]] = {
    "H100 PCIe": {"fp32": 51.2, "tf32": 378, "bf16": 756, "fp16": 756},
    "H100 NVL|H200 NVL": {"fp32": 60, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5},
    "H100|H200|GH200": {"fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4},
    "A100": {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312},
    "L40S": {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05},
    "L4": {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121},
    "V100-SXM2": {"fp32": 15.7, "fp16": 125},
    "V100-PCIE": {"fp32": 14, "fp16": 112},
    "T4": {"fp32": 8.1, "fp16": 65},
    "MI300X": {"fp32": 163.4, "bf16": 1307.4, "fp16": 1307.4},
}
"""Part of a GPU's name -> dense peak in TFLOP/s by precision, from datasheets (docs/utilization.md); first match.

A MIG slice, with a name such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`, has no datasheet."""
TIMES = {"compute_s": "compute-bound", "memory_s": "memory-bound", "launch_s": "launch-bound", "data_s": "data-bound"}
"""Lower bound of an epoch's time -> the verdict if it is the largest one."""
LOWER_BOUND = "FLOPs, MFU and HFU are lower bounds: FLOPs of {} are not counted"
MIN_EXPLAINED = 0.5
"""Fraction of an epoch's time that a bound must explain to be the verdict."""


def epoch_utilization(metrics: Mapping[str, float], run: RunInfo, convention: str) -> dict[str, float]:
    """Return MFU, HFU and joules per GFLOP of an epoch by its metrics without prefix, as far as they are known.

    The time that the counting of a script's FLOPs has added to the epoch is left out.
    """
    unit, per_unit = _flops(run)
    utilization: dict[str, float] = {}
    if unit not in metrics:
        return {}
    flops = {name: metrics[unit] * each for name, each in per_unit.items()}
    if peak := total_peak(run.training, "flop_per_s"):
        possible = peak * (metrics["e2e_s"] - metrics.get("counting_s", 0.0))
        utilization = {
            name: flops[key] / possible for name, key in (("mfu", convention), ("hfu", "executed")) if key in flops
        }
    if "energy_j" in metrics and flops.get("executed"):
        utilization["energy_per_gflop_j"] = metrics["energy_j"] / (flops["executed"] / GIGA)
    return utilization


def roofline_metrics(
    metrics: Mapping[str, float], run: RunInfo, convention: str, precision: str, counting_s: float = 0.0
) -> dict[str, float]:
    """Return utilization, peaks, arithmetic intensity, and lower bounds of a steady epoch's time.

    `counting_s` is the mean time that the counting of a script's FLOPs has added to the steady epochs.
    """
    steady = {name.partition("/")[2]: value for name, value in metrics.items() if name.startswith("steady/")}
    steady["counting_s"] = counting_s
    utilization = epoch_utilization(steady, run, convention) if "e2e_s" in steady else {}
    training, model = run.training, run.model
    flop_per_s, bytes_per_s = total_peak(training, "flop_per_s"), total_peak(training, "bytes_per_s")
    flops, used, uncached = (model.get(f"{name}_per_sample") for name in ("flops", "operator_bytes", "uncached_bytes"))
    samples, steps = steady.get("samples"), steady.get("steps")
    values: dict[str, float | None] = {"peak_flop_per_s": flop_per_s, "peak_bytes_per_s": bytes_per_s}
    if "step" in training:
        precision = training["step"].get("precision") or ""
    values["datasheet_flop_per_s"] = datasheet_flop_per_s(training, precision)
    values["flop_per_byte"] = flops / used if flops and used else None
    if samples and steps and flop_per_s and bytes_per_s and flops is not None:
        values["compute_s"] = samples * flops / flop_per_s
        values["memory_s"] = None if uncached is None else samples * uncached / bytes_per_s
        calls, launch_s = model.get("operator_calls"), (training.get("peaks") or {}).get("launch_s")
        values["launch_s"] = None if calls is None or launch_s is None else steps * calls * launch_s
        values["data_s"] = steady.get("data_stall_s")
    bounds = {f"roofline/{name}": value for name, value in values.items() if value is not None}
    return {**bounds, **{f"steady/{name}": value for name, value in utilization.items()}}


def verdict(metrics: Mapping[str, float]) -> str | None:
    """Return which lower bound of an epoch is the largest, such as `memory-bound`.

    None if not all bounds are known, or if the largest explains less than `MIN_EXPLAINED` of the epoch.
    """
    bounds = {label: metrics[f"roofline/{name}"] for name, label in TIMES.items() if f"roofline/{name}" in metrics}
    if len(bounds) < len(TIMES):
        return None
    largest = max(bounds, key=lambda label: bounds[label])
    return largest if bounds[largest] >= MIN_EXPLAINED * metrics["steady/e2e_s"] else None


def mfu_by_convention(metrics: Mapping[str, float], run: RunInfo, convention: str) -> list[float]:
    """Return the MFU of a run under each defined convention, the smallest first; empty without MFU."""
    if "steady/mfu" not in metrics:
        return []
    _, flops = _flops(run)
    counts = sorted(count for name, count in flops.items() if name != "executed")
    return [metrics["steady/mfu"] * count / flops[convention] for count in counts]


def utilization_notes(metrics: Mapping[str, float], run: RunInfo, convention: str) -> list[str]:
    """Return why there is no MFU, or that it exceeds 1, which is an error of the peak or of the counted FLOPs."""
    training, mfu = run.training, metrics.get("steady/mfu", 0.0)
    if reason := training.get("step", {}).get("reason"):
        return [f"no FLOPs and no MFU: {reason}"]
    notes = [LOWER_BOUND.format(text)] if (text := ", ".join(uncounted(training))) else []
    if reason := (training.get("peaks") or {}).get("reason"):
        return [*notes, f"no MFU: the device's peak could not be measured: {reason}"]
    conventions = {"counted", *training.get("conventions", {})}
    if training.get("peaks") and convention not in conventions:
        defined = " or ".join(sorted(conventions))
        return [*notes, f"no MFU: `roofline.flops={convention}` is not defined for this model; use {defined}"]
    if mfu <= 1:
        return notes
    return [
        *notes,
        f"MFU is {mfu:.3f}, more than the measured peak allows: the peak is too low, or an algorithm such as Winograd "
        "needs fewer operations than are counted. Measure the peak again with `roofline.peaks=again`",
    ]


def uncounted(training: Training) -> list[str]:
    """Return what may have FLOPs of a script that were not counted, so that FLOPs and MFU are lower bounds."""
    return sorted(training.get("step", {}).get("not_counted", {}))


def total_peak(training: Training, name: Literal["flop_per_s", "bytes_per_s"]) -> float | None:
    """Return the peak of all devices that train together; None if it was not measured."""
    peak = (training.get("peaks") or {}).get(name)
    return None if peak is None else peak * _device_count(training)


def datasheet_flop_per_s(training: Training, precision: str) -> float | None:
    """Return the dense peak of all GPUs by their datasheet; None if it is not known."""
    name = training.get("gpu", {}).get("name", "")
    sheet: Mapping[str, float] = next(
        (sheet for product, sheet in DATASHEETS.items() if re.search(rf"\b({product})\b(?!.* MIG )", name)), {}
    )
    return sheet[precision] * TERA * _device_count(training) if precision in sheet else None


def _device_count(training: Training) -> int:
    """Return the number of GPUs that train, or of ranks, which share a CPU's threads."""
    gpus = training.get("gpus") or []
    return (len(set(gpus)) if all(gpus) else len(gpus)) or training.get("ranks", 1)


def _flops(run: RunInfo) -> tuple[str, dict[str, float]]:
    """Return FLOPs of training by convention, and those that are `executed`, with recomputation: per sample.

    The first value is the metric that counts the samples; of a script whose samples are not known, that of the steps.
    """
    flops, model = dict(run.training.get("conventions", {})), run.model
    unit, executed, recomputed = "samples", model.get("flops_per_sample"), model.get("recomputed_flops_per_sample")
    if (of_step := model.get("flops_per_step")) is not None:
        unit, executed, recomputed = "steps", of_step, model.get("recomputed_flops_per_step")
    if executed is not None:
        flops["executed"] = executed
        flops["counted"] = executed - (recomputed or 0.0)
    return unit, flops
