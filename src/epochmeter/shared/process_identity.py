"""The identity of a process beyond its pid, so that no later process with the same pid is mistaken for it."""

import os
import pathlib
import platform
from typing import List, NamedTuple, Optional

ENDED_STATES = ("Z", "X")  # states of a process that has ended but has not been waited for by its parent
EXITING = 0x4  # flag of the kernel (PF_EXITING) for a process that is closing its files and connections


class Process(NamedTuple):
    host: str
    pid: int
    boot_id: Optional[str]  # of the host's boot; None or empty if unknown
    start_ticks: Optional[str]  # its start time, as the function of this name returns it; None if unknown
    pid_namespace: Optional[str] = None  # of `pid`, since a container may have its own; None if unknown


def this_process() -> Process:
    return identify(os.getpid())


def identify(pid: int) -> Process:
    """Return the identity of a process of this PID namespace."""
    return Process(platform.node(), pid, boot_id(), start_ticks(pid), pid_namespace())


def boot_id() -> str:
    """Return the identifier of the current boot; empty if the kernel does not report it."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> Optional[str]:
    """Return the kernel's name of this process's PID namespace; None if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def start_ticks(pid: int) -> Optional[str]:
    """Return the start time of a process in clock ticks since boot, which no clock change affects; None without one."""
    try:
        return read_stat(pid)[19]
    except OSError:
        return None


def is_alive(process: Process) -> bool:
    """Whether a process is running; assumed True for processes of other hosts or containers."""
    if process.host != platform.node():
        return True
    now = boot_id()
    if process.boot_id and now and process.boot_id != now:
        return False
    if process.pid_namespace not in (None, pid_namespace()):
        return True
    try:
        stat = read_stat(process.pid)
    except OSError:
        return False
    return stat[0] not in ENDED_STATES and process.start_ticks in (None, stat[19])


def has_exited(pid: int) -> bool:
    """Whether a process of this PID namespace has ended or is ending; the kernel then closes its connections."""
    try:
        stat = read_stat(pid)
    except OSError:
        return True
    return stat[0] in ENDED_STATES or bool(int(stat[6]) & EXITING)


def read_stat(pid: int, proc: str = "/proc") -> List[str]:
    """Return the fields of /proc/PID/stat from the state on; the name before the state may contain any character."""
    with open("{}/{}/stat".format(proc, pid), "rb") as file:
        return file.read().decode(errors="replace").rpartition(")")[2].split()
