"""A process that runs already: what it is, whether it still runs, and what of it this user may read."""

import os
import pwd
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from epochmeter.shared.problem import input_error
from epochmeter.shared.process_identity import ENDED_STATES, Process, identify, is_alive, read_stat, start_ticks

LIST = "`ps -u $USER -o pid,lstart,args` lists your processes"
KERNEL_THREAD = 0x00200000  # flag of the kernel (PF_KTHREAD) for its own threads
POLL_S = 0.2  # period of looking at a process whose end the kernel does not report
STARTING_TRIES, STARTING_S = 10, 0.02
"""How often, and after which time, the command line of a process is read that has none yet."""
READ_FILES = {
    "its memory": "status",
    "the processes that it has started": "task/{pid}/children",
    "the time that its threads wait for a core": "schedstat",
}
"""What is read of a process -> file in its folder in /proc."""


class RunningProcess(NamedTuple):
    """A process, by its number and its start.

    Attributes:
        command: Its command line.
        user: Its user; empty if it is this one.
        unreadable: What of it cannot be read.
    """

    identity: Process
    command: list[str]
    user: str
    unreadable: list[str]

    @property
    def is_alive(self) -> bool:
        return is_alive(self.identity)


def find_process(pid: int, proc: Path = Path("/proc")) -> RunningProcess:
    """Return a running process; InputError if it does not exist, has ended, or is a thread of the kernel."""
    try:
        stat = read_stat(pid, str(proc))
        owner = os.stat(proc / str(pid)).st_uid
        words = _command(proc / str(pid))
    except (FileNotFoundError, ProcessLookupError) as error:
        raise input_error(f"no process has the number {pid}, or it is hidden from this user", LIST) from error
    except PermissionError as error:
        hint = "measure as its user, or as root"
        raise input_error(f"process {pid} is hidden from this user: {error.strerror}", hint) from error
    if stat[0] in ENDED_STATES:
        parent = f"its parent, process {stat[1]}, has not waited for it"
        raise input_error(f"process {pid} has ended already: {parent}", f"give a process that runs: {LIST}")
    if int(stat[6]) & KERNEL_THREAD or not words[0]:
        raise input_error(f"process {pid} runs no program: it is a thread of the kernel, or ends", LIST)
    command = [word.decode(errors="replace") for word in words]
    return RunningProcess(identify(pid), command, _name_of(owner), _unreadable(proc / str(pid), pid))


def _command(folder: Path) -> list[bytes]:
    """Return the words of a command line, the first of which is empty if there is none; a process may just begin it."""
    for _ in range(STARTING_TRIES):
        if text := (folder / "cmdline").read_bytes():
            return text.rstrip(b"\0").split(b"\0")
        time.sleep(STARTING_S)
    return [b""]


def find_earlier_process(pid: int) -> RunningProcess:
    """Return a process that ran before this one; InputError if its number has been given to another one since then."""
    process, own = find_process(pid), start_ticks(os.getpid())
    if own is not None and process.identity.start_ticks is not None and int(process.identity.start_ticks) > int(own):
        raise input_error(f"process {pid} has ended, and a later one has its number now", f"give another one: {LIST}")
    return process


def wait_for_end(process: RunningProcess, limit_s: float) -> bool:
    """Wait at most this time for the end of a process; return whether it has ended. A signal may end the wait early."""
    with suppress(OSError):  # an older kernel, or a container that forbids it
        descriptor = os.pidfd_open(process.identity.pid)
        try:
            if process.is_alive:  # so the descriptor is that of this process
                select.select([descriptor], [], [], limit_s)
        finally:
            os.close(descriptor)
        return not process.is_alive
    time.sleep(min(limit_s, POLL_S))
    return not process.is_alive


def _name_of(owner: int) -> str:
    if owner == os.geteuid():
        return ""
    with suppress(KeyError):
        return pwd.getpwuid(owner).pw_name
    return str(owner)


def _unreadable(folder: Path, pid: int) -> list[str]:
    """Return what of a process cannot be read, such as that of another user."""
    found = []
    for what, name in READ_FILES.items():
        try:
            (folder / name.format(pid=pid)).read_bytes()
        except OSError as error:
            found.append(f"{what} ({error.strerror})")
    return found
