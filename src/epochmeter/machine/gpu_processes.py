"""Other processes that compute on the GPUs of a run, by NVML's process lists."""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import psutil

from epochmeter.machine import nvml
from epochmeter.machine.sysfs import read_text
from epochmeter.shared.process_identity import pid_namespace

log = logging.getLogger(__name__)

MPS = "nvidia-cuda-mps"
"""Name of the MPS service, through which processes share a GPU; it computes nothing itself."""
HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's name for the host's PID namespace, whose process IDs NVML lists."""
GIB = 2**30


class GpuProcessMonitor:
    """Monitors processes of other programs that compute on the GPUs of a run.

    A poll takes a few milliseconds at most and never raises; values that NVML does not report are unknown.
    """

    def __init__(self, gpus: Sequence[nvml.NvmlGpu], close: Callable[[], None] = lambda: None) -> None:
        self.own_pids: set[int] = {os.getpid()}
        """Processes of this run; they and their descendants are not reported."""
        self.close = close
        """Shuts NVML down."""
        self._gpus = gpus
        self._since_us = {gpu.name: 0 for gpu in gpus}
        self._utilization: dict[tuple[str, int], float] = {}
        """The last known utilization of each process."""
        self._seen: dict[tuple[str, int], str] = {}
        self._warned: set[tuple[str, int]] = set()

    def poll(self) -> None:
        """Note the processes that compute on the GPUs now; log a warning for each new one."""
        for gpu in self._gpus:
            with suppress(OSError):
                self._seen |= self._others(gpu)
        for key in self._seen.keys() - self._warned:
            hint = "end that process; it affects the times and energy of this run"
            log.warning("warning: %s\n  hint: %s", self._seen[key], hint)
        self._warned |= self._seen.keys()

    def drain(self) -> list[str]:
        """Return one text per process seen since the last call."""
        seen, self._seen = self._seen, {}
        return list(seen.values())

    def _others(self, gpu: nvml.NvmlGpu) -> dict[tuple[str, int], str]:
        """Texts about other processes on a GPU, by its name and their process ID (0 if hidden)."""
        memory = dict(gpu.compute_processes())
        own = {pid for pid in memory if is_descendant(pid, self.own_pids)}
        others = [pid for pid in memory if pid not in own and not command_name(pid).startswith(MPS)]
        if not own and not in_hosts_pid_namespace():
            # NVML lists process IDs of another PID namespace, in which this run's own are unknown.
            more = len(others) - (len(self.own_pids) - 1)  # this process itself does not use the GPU
            text = (
                f"{len(others)} processes compute on {gpu.name}, {more} more than this run's own; their IDs are hidden"
            )
            return {(gpu.name, 0): text} if more > 0 else {}
        if others:
            self._read_utilization(gpu)
        return {(gpu.name, pid): self._describe(gpu.name, pid, memory[pid]) for pid in others}

    def _read_utilization(self, gpu: nvml.NvmlGpu) -> None:
        percents = defaultdict(list)
        with suppress(OSError):
            for pid, percent, at_us in gpu.process_utilization(self._since_us[gpu.name]):
                if percent <= 100:  # some drivers fill unused samples with garbage
                    percents[pid].append(percent)
                self._since_us[gpu.name] = max(self._since_us[gpu.name], at_us)
        self._utilization |= {(gpu.name, pid): fmean(values) / 100 for pid, values in percents.items()}

    def _describe(self, gpu: str, pid: int, memory_bytes: int | None) -> str:
        name, utilization = command_name(pid), self._utilization.get((gpu, pid))
        memory = "memory unknown" if memory_bytes is None else f"{memory_bytes / GIB:.1f} GiB"
        busy = "utilization unknown" if utilization is None else f"{utilization:.0%} utilization"
        return f"process {pid}{f' ({name})' if name else ''} also computes on {gpu}: {memory}, {busy}"


NO_GPUS = GpuProcessMonitor([])
"""Monitors no GPUs."""


def open_gpu_monitor(uuids: Sequence[str]) -> GpuProcessMonitor:
    """Monitor the GPUs with these UUIDs that NVML lists; none without NVML."""
    if not uuids:
        return NO_GPUS
    try:
        shut_down = nvml.start()
    except OSError:
        return NO_GPUS
    gpus = []
    for uuid in uuids:
        with suppress(OSError):
            gpus.append(nvml.open_gpu(uuid))
    return GpuProcessMonitor(gpus, shut_down)


def in_hosts_pid_namespace() -> bool:
    """Whether process IDs here are the host's; in a container they may differ."""
    return pid_namespace() == HOST_PID_NAMESPACE


def is_descendant(pid: int, ancestors: Collection[int]) -> bool:
    """Whether a process is one of `ancestors` or descends from one; False if it is hidden."""
    try:
        return pid in ancestors or any(parent.pid in ancestors for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def command_name(pid: int) -> str:
    """Return the name of a process; empty if it is hidden."""
    return read_text(Path(f"/proc/{pid}/comm"))
