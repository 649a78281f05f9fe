"""Other processes that compute on the GPUs of a run, by NVML's process lists."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import Any, NamedTuple

from trainmeter.machine import nvml

log = logging.getLogger(__name__)

MPS = "nvidia-cuda-mps"
"""The name of the service through which several processes share a GPU: it computes nothing itself."""
HOSTS_OWN = "pid:[4026531836]"
"""The kernel's name for the PID namespace of the host, in which all process IDs are those that NVML lists."""
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


class Neighbors:
    """Watches for processes, other than this one and its descendants, that compute on the GPUs of a run.

    A look costs a few milliseconds at most and never raises: what NVML does not answer is not known.
    """

    def __init__(
        self, handles: Mapping[str, Any], close: Callable[[], None] = lambda: None, *, host_pids: bool | None = None
    ) -> None:
        """Watch GPUs.

        Args:
            handles: NVML's handles by the GPUs' names.
            close: shuts NVML down.
            host_pids: whether process IDs here are the host's; None: the kernel is asked.
        """
        self.own: set[int] = {os.getpid()}
        """Processes of this run, which are left out with their descendants."""
        self._handles = handles
        self._close = close
        self._host_pids = in_hosts_pid_namespace() if host_pids is None else host_pids
        self._since_us = dict.fromkeys(handles, 0)
        self._busy: dict[tuple[str, int], float] = {}
        """The last known utilization of each process."""
        self._seen: dict[tuple[str, int], str] = {}
        self._warned: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Note the processes that compute on the GPUs now; the first time it sees one it logs a warning."""
        for gpu, handle in self._handles.items():
            with suppress(OSError):
                for key, text in self._others(gpu, handle).items():
                    self._seen[key] = text
                    if key not in self._warned:
                        log.warning("%s. Times and energy of this run are not its alone.", text)
                    self._warned.add(key)

    def take(self) -> list[str]:
        """What was seen since the last call, one text per process."""
        seen, self._seen = self._seen, {}
        return list(seen.values())

    def close(self) -> None:
        self._close()

    def _others(self, gpu: str, handle: Any) -> dict[tuple[str, int], str]:
        listed = compute_processes(gpu, handle)
        own = {process.pid for process in listed if self._is_own(process.pid)}
        others = [process for process in listed if process.pid not in own and not is_mps(process.pid)]
        if not own and not self._host_pids:
            # NVML lists process IDs of another PID namespace: this run's own cannot be told from the others.
            more = len(others) - (len(self.own) - 1)  # this process itself computes nothing
            text = f"{len(others)} processes compute on {gpu}, {more} more than this run's own; their IDs are hidden"
            return {(gpu, 0): text} if more > 0 else {}
        if not others:
            return {}
        busy, self._since_us[gpu] = utilization(gpu, handle, self._since_us[gpu])
        self._busy |= {(gpu, pid): fraction for pid, fraction in busy.items()}
        keys = [(gpu, other.pid) for other in others]
        return {
            key: other._replace(utilization=self._busy.get(key)).text for key, other in zip(keys, others, strict=True)
        }

    def _is_own(self, pid: int) -> bool:
        """Whether a process is of this run, or descends from one that is."""
        while pid > 1:
            if pid in self.own:
                return True
            pid = parent_of(pid)
        return False


NOBODY = Neighbors({}, host_pids=True)
"""No GPUs are watched."""


def open_neighbors(gpus: Sequence[str]) -> Neighbors:
    """Watch the GPUs with these UUIDs, as far as NVML knows them; none where there is no NVML."""
    if not gpus:
        return NOBODY
    try:
        shut_down = nvml.start()
    except OSError:
        return NOBODY
    handles = {}
    for uuid in gpus:
        with suppress(OSError):
            name, handle = nvml.named(uuid)
            handles[name] = handle
    return Neighbors(handles, shut_down)


def compute_processes(gpu: str, handle: Any) -> list[GpuProcess]:
    """The processes with a compute context on a GPU; OSError where NVML does not list them."""
    import pynvml

    listed = nvml.ask(gpu, pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return [GpuProcess(gpu, process.pid, process.usedGpuMemory) for process in listed]


def utilization(gpu: str, handle: Any, since_us: int) -> tuple[dict[int, float], int]:
    """How busy each process kept a GPU since a moment of NVML's clock.

    Returns:
        The mean fraction of the GPU's time by process ID, and the moment of the last sample in microseconds; what came
        in where the GPU does not tell.
    """
    import pynvml

    samples: Collection[Any] = ()
    with suppress(OSError):
        samples = nvml.ask(gpu, pynvml.nvmlDeviceGetProcessUtilization, handle, since_us)
    percents: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.smUtil <= 100:  # some drivers fill unused samples with garbage
            percents[sample.pid].append(sample.smUtil)
    latest_us = max((sample.timeStamp for sample in samples), default=since_us)
    return {pid: fmean(values) / 100 for pid, values in percents.items()}, latest_us


def parent_of(pid: int) -> int:
    """The parent of a process; 0 where there is none, or it cannot be seen from here."""
    with (
        suppress(OSError, IndexError, ValueError),
        open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat,
    ):
        return int(stat.read().rpartition(")")[2].split()[1])
    return 0


def command_name(pid: int) -> str:
    """The name of a process; empty where it cannot be seen from here."""
    with suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
        return comm.read().strip()
    return ""


def is_mps(pid: int) -> bool:
    return command_name(pid).startswith(MPS)


def in_hosts_pid_namespace() -> bool:
    """Whether process IDs here are the host's: in a container they may be others."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOSTS_OWN
    except OSError:
        return False
