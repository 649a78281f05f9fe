"""Which process it is that measures a run, told so that no later one is taken for it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ENDED = ("Z", "X")
"""The states of a process that has ended, and whose parent has not asked how."""


class Process(NamedTuple):
    """A process of some host."""

    host: str
    pid: int
    boot_id: str | None
    """What tells one start of that host from the next; None or empty where its kernel does not say."""
    began: str | None
    """When it began, which tells it from a later one of the same number: as `began` says, or None where unknown."""
    numbers: str | None = None
    """Of which numbers its own is, since a container may have its own: as `numbers` says, or None where unknown."""


def this_process() -> Process:
    return Process(platform.node(), os.getpid(), boot_id(), began(os.getpid()), numbers())


def boot_id() -> str:
    """What tells this start of the machine from the next; empty where the kernel does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def numbers() -> str | None:
    """The kernel's name for the processes that this one sees and numbers: its PID namespace."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def began(pid: int) -> str | None:
    """When a process of this machine began, in the kernel's ticks since it started, which no setting of the clock
    changes; None where there is none."""
    try:
        return _told(pid)[19]
    except OSError:
        return None


def lives(process: Process) -> bool:
    """Whether a process is there. Of another host or container one cannot tell, and it is believed to be."""
    if process.host != platform.node():
        return True
    if process.boot_id and (now := boot_id()) and process.boot_id != now:
        return False
    if process.numbers not in (None, numbers()):
        return True
    try:
        told = _told(process.pid)
    except OSError:
        return False
    return told[0] not in ENDED and process.began in (None, told[19])


def _told(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on: its name, before that, may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
