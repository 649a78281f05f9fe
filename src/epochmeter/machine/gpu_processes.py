"""Other processes that compute on the GPUs of a run, by NVML's process lists."""

import logging
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from epochmeter.machine import nvml
from epochmeter.machine.sysfs import read_text
from epochmeter.shared.problem import Problem, format_problem
from epochmeter.shared.process_identity import pid_namespace

log = logging.getLogger(__name__)

MPS = "nvidia-cuda-mps"  # name of the MPS service, through which processes share a GPU; it computes nothing itself
HOST_PID_NAMESPACE = "pid:[4026531836]"  # the kernel's name for the host's PID namespace, whose process IDs NVML lists
GIB = 2**30


class GpuProcessMonitor:
    """Monitors processes of other programs that compute on a run's GPUs, by UUID, as far as NVML lists these."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self.own_pids: set[int] = {os.getpid()}  # they and their descendants are not reported
        self.are_identified = False  # whether one of the processes that were drained last has a known ID
        self._gpus: list[nvml.NvmlGpu] = []
        self._seen: dict[tuple[str, int], str] = {}
        self._warned: set[tuple[str, int]] = set()
        opened = ExitStack()
        self.close = opened.close
        for uuid in uuids:
            with suppress(OSError):
                opened.callback(nvml.start())
                self._gpus.append(nvml.open_gpu(uuid))

    def poll(self) -> None:
        """Note the processes that compute on the GPUs now; log a warning for each new one."""
        for gpu in self._gpus:
            with suppress(OSError):
                self._seen |= self._others(gpu)
        for key in self._seen.keys() - self._warned:
            hint = "end that process; it affects the times and energy of this run"
            log.warning(format_problem(Problem(self._seen[key], hint), "warning"))
        self._warned |= self._seen.keys()

    def drain(self) -> list[str]:
        """Return one text per process seen since the last call."""
        seen, self._seen = self._seen, {}
        self.are_identified = any(pid for _, pid in seen)
        return list(seen.values())

    def _others(self, gpu: nvml.NvmlGpu) -> dict[tuple[str, int], str]:
        """Return texts about other processes on a GPU, by its name and their process ID (0 if hidden)."""
        memory = dict(gpu.compute_processes())
        of_run = {pid for pid in memory if is_descendant(pid, self.own_pids)}
        others = {pid: name for pid in memory if not (pid in of_run or (name := command_name(pid)).startswith(MPS))}
        if of_run or pid_namespace() == HOST_PID_NAMESPACE:
            return {(gpu.name, pid): _describe(gpu.name, pid, name, memory[pid]) for pid, name in others.items()}
        # NVML lists process IDs of another PID namespace, in which this run's own are unknown.
        more = len(others) - (len(self.own_pids) - 1)  # this process itself does not use the GPU
        text = f"{len(others)} processes compute on {gpu.name}, {more} more than this run's own; their IDs are hidden"
        return {(gpu.name, 0): text} if more > 0 else {}


NO_GPUS = GpuProcessMonitor([])


def _describe(gpu: str, pid: int, name: str, memory_bytes: int | None) -> str:
    memory = "memory unknown" if memory_bytes is None else f"{memory_bytes / GIB:.1f} GiB"
    return f"process {pid}{f' ({name})' if name else ''} also computes on {gpu}: {memory}"


def is_descendant(pid: int, ancestors: Collection[int]) -> bool:
    """Whether a process is one of `ancestors` or descends from one; False if it is hidden."""
    try:
        return pid in ancestors or any(parent.pid in ancestors for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def command_name(pid: int) -> str:
    """Return the name of a process; empty if it is hidden."""
    return read_text(Path(f"/proc/{pid}/comm"))
