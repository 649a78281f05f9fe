"""Other processes that compute on the GPUs of a run, by NVML's process lists."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any, NamedTuple

from epochmeter.machine import nvml

log = logging.getLogger(__name__)

MPS = "nvidia-cuda-mps"
"""Name of the MPS service, through which processes share a GPU; it computes nothing itself."""
HOST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's name for the host's PID namespace, whose process IDs NVML lists."""
GIB = 2**30


class GpuProcess(NamedTuple):
    """A process that computes on a GPU.

    Attributes:
        gpu: the GPU's name, such as `gpu0`.
        pid: its process ID, as NVML lists it.
        memory_bytes: the memory it holds on the GPU; None: unknown.
        utilization: the fraction of time in which it kept the GPU busy; None: unknown.
    """

    gpu: str
    pid: int
    memory_bytes: int | None = None
    utilization: float | None = None

    @property
    def text(self) -> str:
        name = command_name(self.pid)
        memory = "memory unknown" if self.memory_bytes is None else f"{self.memory_bytes / GIB:.1f} GiB"
        busy = "utilization unknown" if self.utilization is None else f"{self.utilization:.0%} utilization"
        return f"process {self.pid}{f' ({name})' if name else ''} also computes on {self.gpu}: {memory}, {busy}"


class GpuProcessMonitor:
    """Monitors processes of other programs that compute on the GPUs of a run.

    A poll takes a few milliseconds at most and never raises; values that NVML does not report are unknown.
    """

    def __init__(
        self, handles: Mapping[str, Any], close: Callable[[], None] = lambda: None, *, host_pids: bool | None = None
    ) -> None:
        """Monitor GPUs.

        Args:
            handles: NVML's handles by the GPUs' names.
            close: shuts NVML down.
            host_pids: whether process IDs here are the host's; None: read from the kernel.
        """
        self.own_pids: set[int] = {os.getpid()}
        """Processes of this run; they and their descendants are not reported."""
        self._handles = handles
        self._close = close
        self._host_pids = in_hosts_pid_namespace() if host_pids is None else host_pids
        self._since_us = dict.fromkeys(handles, 0)
        self._busy: dict[tuple[str, int], float] = {}
        """The last known utilization of each process."""
        self._seen: dict[tuple[str, int], str] = {}
        self._warned: set[tuple[str, int]] = set()

    def poll(self) -> None:
        """Note the processes that compute on the GPUs now; log a warning for each new one."""
        for gpu, handle in self._handles.items():
            with suppress(OSError):
                for key, text in self._others(gpu, handle).items():
                    self._seen[key] = text
                    if key not in self._warned:
                        log.warning(
                            "warning: %s\n  hint: end that process; it affects the times and energy of this run", text
                        )
                    self._warned.add(key)

    def drain(self) -> list[str]:
        """Return one text per process seen since the last call."""
        seen, self._seen = self._seen, {}
        return list(seen.values())

    def close(self) -> None:
        """Shut NVML down."""
        self._close()

    def _others(self, gpu: str, handle: Any) -> dict[tuple[str, int], str]:
        listed = compute_processes(gpu, handle)
        own = {process.pid for process in listed if self._is_own(process.pid)}
        others = [process for process in listed if process.pid not in own and not is_mps(process.pid)]
        if not own and not self._host_pids:
            # NVML lists process IDs of another PID namespace, in which this run's own are unknown.
            more = len(others) - (len(self.own_pids) - 1)  # this process itself does not use the GPU
            text = f"{len(others)} processes compute on {gpu}, {more} more than this run's own; their IDs are hidden"
            return {(gpu, 0): text} if more > 0 else {}
        if not others:
            return {}
        busy, self._since_us[gpu] = utilization(gpu, handle, self._since_us[gpu])
        self._busy |= {(gpu, pid): fraction for pid, fraction in busy.items()}
        keys = [(gpu, process.pid) for process in others]
        return {
            key: process._replace(utilization=self._busy.get(key)).text
            for key, process in zip(keys, others, strict=True)
        }

    def _is_own(self, pid: int) -> bool:
        """Whether a process belongs to this run or is a descendant of one that does."""
        while pid > 1:
            if pid in self.own_pids:
                return True
            pid = parent_of(pid)
        return False


NO_GPUS = GpuProcessMonitor({}, host_pids=True)
"""Monitors no GPUs."""


def open_gpu_monitor(gpus: Sequence[str]) -> GpuProcessMonitor:
    """Monitor the GPUs with these UUIDs that NVML knows; none without NVML."""
    if not gpus:
        return NO_GPUS
    try:
        shut_down = nvml.start()
    except OSError:
        return NO_GPUS
    handles = {}
    for uuid in gpus:
        with suppress(OSError):
            name, handle = nvml.name_and_handle(uuid)
            handles[name] = handle
    return GpuProcessMonitor(handles, shut_down)


def compute_processes(gpu: str, handle: Any) -> list[GpuProcess]:
    """Return the processes with a compute context on a GPU; OSError if NVML does not list them."""
    import pynvml

    listed = nvml.call_nvml(gpu, pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return [GpuProcess(gpu, process.pid, process.usedGpuMemory) for process in listed]


def utilization(gpu: str, handle: Any, since_us: int) -> tuple[dict[int, float], int]:
    """Return the GPU utilization of each process since a moment of NVML's clock.

    Returns:
        Process ID -> mean fraction of the GPU's time, and the time of the last sample in microseconds. An empty dict
        and `since_us` if the GPU does not report it.
    """
    import pynvml

    samples: Collection[Any] = ()
    with suppress(OSError):
        samples = nvml.call_nvml(gpu, pynvml.nvmlDeviceGetProcessUtilization, handle, since_us)
    percents: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.smUtil <= 100:  # some drivers fill unused samples with garbage
            percents[sample.pid].append(sample.smUtil)
    latest_us = max((sample.timeStamp for sample in samples), default=since_us)
    return {pid: fmean(values) / 100 for pid, values in percents.items()}, latest_us


def parent_of(pid: int) -> int:
    """Return the process ID of a process's parent; 0 if there is none or it is hidden."""
    with (
        suppress(OSError, IndexError, ValueError),
        open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat,
    ):
        return int(stat.read().rpartition(")")[2].split()[1])
    return 0


def command_name(pid: int) -> str:
    """Return the name of a process; empty if it is hidden."""
    with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
        return comm.read().strip()
    return ""


def is_mps(pid: int) -> bool:
    return command_name(pid).startswith(MPS)


def in_hosts_pid_namespace() -> bool:
    """Whether process IDs here are the host's; in a container they may differ."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST_PID_NAMESPACE
    except OSError:
        return False
