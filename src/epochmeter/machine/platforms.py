"""What this project needs of the operating system: Linux to measure, any Unix to show what was measured.

Windows is not supported, except by WSL2, which is Linux.
"""

import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.shared.problem import Problem

LINUX_COMMANDS = ("train", "measure", "doctor", "validate")
"""Modules of commands that read the counters of Linux."""
SHOWN = ("--help", "-h", "--cfg", "-c", "--info", "--hydra-help", "--version")  # options with which nothing is measured
AUTOGROUP = "/proc/self/autogroup"  # file of the niceness of a process's session
HINT = (
    "use Linux, also in a virtual machine or a container (on Windows: WSL2); here, `python src/report.py` "
    "and `python src/watch.py` show what was measured"
)
OTHERS = {"darwin": "macOS", "win32": "Windows", "cygwin": "Cygwin"}
"""Other systems, as Python names them, and their names."""


def unsupported(command: str, arguments: Sequence[str]) -> Problem | None:
    """Return why a command, by its module, cannot run on this operating system; None if it can."""
    own = itertools.takewhile(lambda argument: "=" in argument or argument.startswith(("-", "~")), arguments)
    if sys.platform.startswith("linux") or command not in LINUX_COMMANDS or {*SHOWN} & {*own}:  # not the script's
        return None
    missing = [path for path in ("/proc", "/sys") if not os.path.exists(path)]
    lacks = f", which lacks {' and '.join(missing)}" if missing else ""
    system = OTHERS.get(sys.platform, sys.platform)
    return Problem(f"times and energy are measured with counters of Linux, and this is {system}{lacks}", HINT)


def allowed_cores() -> "set[int]":
    """Return the numbers of the processor cores on which this process may run; all of them where Linux is not asked."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return {*range(os.cpu_count() or 1)}


def yield_to_others() -> None:
    """Let all other processes run first, where the operating system allows that."""
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def lower_priority(niceness: int) -> None:
    """Raise the niceness of this process, and that of its session if it leads one.

    Where Linux shares the processor between sessions (autogroups), the niceness of a process counts within its own.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path(AUTOGROUP).write_text(str(niceness))


def path_of_descriptor(descriptor: int) -> str:
    """Return a path by which an open file is opened again."""
    linked = f"/proc/self/fd/{descriptor}"
    return linked if os.path.lexists(linked) else f"/dev/fd/{descriptor}"
