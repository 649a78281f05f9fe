"""Metadata of runs in reports: devices, platform, and disturbances of the measurement."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

EPOCH_METRICS = (
    *("epoch/e2e_s", "epoch/data_stall_s", "epoch/loader_start_s", "epoch/copy_s", "epoch/compute_s"),
    *("epoch/overhead_s", "epoch/energy_j", "epoch/power_mean_w"),
)
"""The per-epoch metrics that reports use."""
DISTURBED = {
    "gpu_shared": "another process used the GPU",
    "cpu_shared": "other processes used the processor",
    "throttled": "heat or over-current lowered the clocks",
    "setting_changed": "another program changed a device setting",
    "paused": "the run was paused",
}
"""Possible disturbances of a measurement, by the tags of runs."""


def device_count(job: Mapping[str, Any], run: Mapping[str, Any]) -> int | None:
    """Return the number of training devices: as reported by the training process, else as configured."""
    training = run.get("training") or {}
    if "gpus" in training and "ranks" not in training:
        return len(training["gpus"]) or 1
    ranks = training.get("ranks", (job.get("strategy") or {}).get("ranks"))
    return None if ranks is None else int(ranks)


def platform_info(hostname: str | None, host: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, str]:
    """Return the run's platform by readable names; unknown values are absent."""
    cpu, git, mode = (host.get(name) or {} for name in ("cpu", "git", "power_mode"))
    memory_bytes = host.get("memory_bytes")
    gpus = Counter(gpu["model"] for gpu in host.get("gpus") or [] if gpu.get("model"))
    values = {
        "host": hostname,
        "board": (host.get("board") or {}).get("model"),
        "CPU": ", ".join(filter(None, [cpu.get("model"), f"{cpu['cores']} cores" if cpu.get("cores") else None])),
        "GPU": ", ".join(f"{count} x {model}" if count > 1 else model for model, count in gpus.items()),
        "memory": f"{memory_bytes / 2**30:.1f} GiB" if memory_bytes else None,
        "OS": host.get("os"),
        "kernel": host.get("kernel"),
        "driver": host.get("driver"),
        "torch": training.get("torch"),
        "Python that trains": training.get("python"),
        "git commit": git.get("commit", "")[:12] + (", changed since" if git.get("dirty") else ""),
        "governor": ", ".join(host.get("governors") or []),
        "power mode": mode.get("name") or mode.get("id"),
    }
    return {name: str(value) for name, value in values.items() if value not in (None, "")}
