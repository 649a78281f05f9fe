"""The conversation with a running worker: what its processes say, answers to that, and how it ended.

While a window is open the steward sleeps in `select`; nothing here polls.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 5.0
"""How long it may take until all are gone once one of its processes is, and why is known."""
WHEREABOUTS_S = 2.0
"""How long one that hangs may take to say where."""
OF_ANOTHER = "rank"
"""The failure of a rank that has but seen another end."""


class WorkerError(Exception):
    """The worker ended before its work: `failure` is the tag's word for how."""

    def __init__(self, failure: str, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Line:
    """A connection to one process of the worker, and what came on it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.done = False
        self._unread = b""

    def messages(self) -> list[dict]:
        """Those that have come; EOFError once the process is gone, also where it left an answer unread."""
        try:
            received = self.connection.recv(65536)
        except ConnectionResetError:
            received = b""
        if not received:
            raise EOFError
        *lines, self._unread = (self._unread + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def fileno(self) -> int:
        return self.connection.fileno()


class Worker:
    """A running worker: its messages, and answers to them.

    Each of its processes has a line of its own: the first rank asks, all may say that they have failed, and what
    started them says how one of them ended.
    """

    def __init__(
        self,
        process: subprocess.Popen,
        log: Path,
        ended: int,
        oom_kills: int,
        limit_s: float | None = None,
        silence_s: float | None = None,
    ) -> None:
        self.pid = process.pid
        self._limit_s = limit_s
        self._silence_s = silence_s
        self._begun_s = time.monotonic()
        self._process = process
        self._log = log
        self._ended = ended
        self._oom_kills = oom_kills  # before it started
        self._largest_before = largest_child_bytes()
        self._lines: list[Line] = []
        self._first: Line | None = None
        self._groups = {process.pid}
        self._pids: list[int] = []
        self._troubled = False
        self._failed: WorkerError | None = None
        """What a rank has seen of the end of another: said where nothing better is known in time."""

    def join(self, listener: socket.socket, processes: int) -> None:
        """Takes the lines of so many processes; of fewer, where the worker ends before all have joined."""
        while len(self._lines) < processes:
            ready, _, _ = select.select([listener.fileno(), self._ended], [], [], self._patience_s())
            if not ready:
                raise self._overdue()
            if listener.fileno() not in ready:
                break
            connection, _ = listener.accept()
            self._lines.append(Line(connection))
            self._pids.append(peer(connection))
            with suppress(ProcessLookupError):
                self._groups.add(os.getpgid(self._pids[-1]))
        self._groups.discard(os.getpgrp())  # what a process in a container of its own seems to be of
        if not self._lines:
            raise self.death()

    @property
    def pids(self) -> list[int]:
        """Process IDs of the ranks and of their launcher."""
        return [self.pid, *self._pids]

    def messages(self) -> Iterator[dict]:
        """What the worker says, until it is done; WorkerError as soon as it fails or dies."""
        lines = list(self._lines)
        while True:
            left_s = self._left_s()
            patience_s = PATIENCE_S if self._troubled else self._patience_s()
            waited: list[Any] = [*lines, self._ended]
            ready, _, _ = select.select(waited, [], [], patience_s)
            heard: list[Line] = [line for line in ready if line is not self._ended]
            if left_s == 0 or not (ready or self._troubled):
                raise self._overdue()
            if not heard:
                raise self.death() if ready or not self._failed else self._failed
            for line in heard:
                try:
                    messages = line.messages()
                except EOFError:
                    lines.remove(line)
                    self._troubled |= not line.done  # what started it is to say how it ended
                    continue
                for message in messages:
                    if message["kind"] == "done" and line is self._first:
                        return
                    if not self._noted(message, line):
                        yield message

    def answer(self, **facts: object) -> None:
        """Lets the worker go on from what it asked."""
        try:
            (self._first or self._lines[0]).connection.sendall((json.dumps(facts) + "\n").encode())
        except OSError as error:
            raise self.death() from error

    def death(self) -> WorkerError:
        """How the worker died, once it has, or has had time to."""
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return self._failed or WorkerError("killed", "the worker has left, but does not end")
        return self._last_words() or self._ended_with(code, "the worker" if len(self._lines) < 2 else "torchrun")

    def _last_words(self) -> WorkerError | None:
        """What it said of its end that has not been heard yet: one is noticed by an answer that cannot be given."""
        lines = list(self._lines)
        while ready := select.select(lines, [], [], 0)[0]:
            for line in ready:
                try:
                    for message in line.messages():
                        self._noted(message, line)
                except EOFError:
                    lines.remove(line)
                except WorkerError as error:
                    return error
        return None

    def end(self) -> None:
        """Ends all its processes: each rank may be of a group of its own, which its children share."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self._process.wait()
        for line in self._lines:
            line.connection.close()

    def _left_s(self) -> float | None:
        """How long it may still take; None without a limit."""
        return None if self._limit_s is None else max(0.0, self._begun_s + self._limit_s - time.monotonic())

    def _patience_s(self) -> float | None:
        """How long its next word is waited for; None: for ever."""
        return min((each for each in (self._left_s(), self._silence_s) if each is not None), default=None)

    def _overdue(self) -> WorkerError:
        """What to say of a worker that has not spoken in time."""
        if self._left_s() == 0:
            return WorkerError(
                "timeout", f"the worker took longer than sweep.timeout_s={self._limit_s:g}, and was ended"
            )
        return WorkerError(
            "hung",
            f"the worker said nothing for sweep.hung_after_s={self._silence_s:g}, and was ended{self._whereabouts()}. "
            f"All it said: {self._log}",
        )

    def _whereabouts(self) -> str:
        """Where a worker that hangs is: it writes that to its log when asked to, whatever holds it up in Python."""
        told_before = self._log.stat().st_size
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        until = time.monotonic() + WHEREABOUTS_S
        while not (found := hung_in(self._log.read_text(errors="replace")[told_before:])) and time.monotonic() < until:
            time.sleep(0.05)
        return f" in {found}" if found else ""

    def _noted(self, message: dict, line: Line) -> bool:
        """Whether a message tells of a process alone; WorkerError where it tells of its end."""
        match message["kind"]:
            case "joined":
                if message["speaks"]:
                    self._first = line
            case "failed":
                # The worker knows that a loader process was killed, and not what for.
                killed = message["failure"] == "killed" and oom_kills() > self._oom_kills
                error = WorkerError("oom" if killed else message["failure"], message["message"])
                if message["failure"] != OF_ANOTHER:
                    raise error
                self._failed = self._failed or WorkerError("exception", f"rank {message['rank']}: {message['message']}")
                self._troubled = True
            case "done":
                line.done = True
            case "ended":
                raise self._ended_with(message["code"], f"rank {message['rank']}")
            case _:
                return False
        return True

    def _ended_with(self, code: int, what: str) -> WorkerError:
        if code > 0 and self._failed:
            return self._failed
        if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
            now = largest_child_bytes()  # known of it if none was larger before
            peak = f", its peak was {now / 1e9:.1f} GB" if now > self._largest_before else ""
            return WorkerError("oom", f"the kernel killed {what} for want of memory (SIGKILL{peak})")
        if code < 0:
            return WorkerError("killed", f"{what} was killed by {signal.Signals(-code).name}")
        last = _last_line(self._log)
        remedy = " Name the interpreter that has torch by device.python." if "No module named 'torch" in last else ""
        return WorkerError("exception", f"{what} ended with code {code}: {last}.{remedy} All it said: {self._log}")


def hung_in(told: str) -> str:
    """The place, of what faulthandler tells of a process, that is nearest to what it does: in our package, if any is.

    Empty where it has told nothing, or not to its end.
    """
    _, _, frames = told.rpartition("Current thread ")
    places = re.findall(r'^ +File "([^"]+)", line (\d+) in (.+)$', frames, re.MULTILINE)
    ours = [place for place in places if "/epochmeter/" in place[0]]
    if not places or not told.endswith("\n"):
        return ""
    file, line, function = (ours or places)[0]
    return f"{function} ({Path(file).name}:{line})"


def peer(connection: socket.socket) -> int:
    """The process at the other end."""
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def largest_child_bytes() -> int:
    """The most memory that one of this process's children, or of theirs, has had that have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def _last_line(log: Path) -> str:
    """What it said last; where torchrun has had the last word, the last error before."""
    lines = log.read_text(errors="replace").strip().splitlines()
    if any("ChildFailedError" in line for line in lines):
        lines = [line for line in lines if re.match(r"(?!torch\.distributed\.)[\w.]*(Error|Exit|Exception)\b", line)]
    return lines[-1] if lines else "it said nothing"
