"""The running training process: its messages, the replies to them, and how it ended."""

import logging
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from epochmeter.machine.cores import control_groups
from epochmeter.machine.signals import signal_name
from epochmeter.shared import protocol
from epochmeter.shared.problem import EXCEPTION, KILL_HINT, PEER_RANK, Place, Problem, ProblemError, format_problem
from epochmeter.shared.protocol import Finished, Joined, Message, RankExited, RankFailed

SIGNAL_WAIT_S = 0.5  # how much later than the training process this one may get a signal that both are sent
STACKS_S = 0.5  # how long hung processes have to write their stacks to the log, on SIGUSR1
EXIT_WAIT_S = 5.0  # maximum wait for the reason, and for the end of all processes, after one of them has ended
KILL_WAIT_S = 60.0  # maximum wait for the end of a killed process, which may have much memory to free
PARENT_CHECK_S = 0.5  # how often it is checked whether the script that started this process still exists
MEMORY_HINT = "reduce the batch size, or use fewer DataLoader workers"


class WorkerError(ProblemError):
    """The training process, or the script, ended too early."""


def worker_error(code: str, message: str, hint: str = "", file: Path | None = None) -> WorkerError:
    return WorkerError(Problem(message, hint, code, Place(file=str(file or ""))))


class StartingScript:
    """The script that started this process, which therefore cannot wait for it; it counts as ended with `ended`."""

    returncode = None

    def __init__(self) -> None:
        self.pid, self.ended = os.getppid(), threading.Event()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the script or of its use of this process, for whatever reason; the time is unlimited."""
        while os.getppid() == self.pid and not self.ended.wait(PARENT_CHECK_S):
            pass
        return 0


Process = subprocess.Popen[bytes] | StartingScript


class Connection:
    """The connection to one rank, or to torchrun."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", credentials)[0]  # 0 if it is in another PID namespace
        self.finished = False
        self._unread = b""

    def messages(self) -> list[Message]:
        """Return the messages that have arrived; EOFError if the process has ended, even if it left a reply unread."""
        try:
            received = self.socket.recv(65536)
        except ConnectionResetError:
            received = b""
        if not received:
            raise EOFError
        *lines, self._unread = (self._unread + received).split(b"\n")
        return [protocol.decode(line) for line in lines]

    def fileno(self) -> int:
        return self.socket.fileno()


class WorkerProcess:
    """The running training process, with a connection to each rank and to torchrun.

    The limits are `sweep.timeout_s` and `sweep.hung_after_s`.
    `pids` has the process that was started, then each process that has connected.
    """

    def __init__(
        self, process: Process, log: Path, limit_s: float | None = None, silence_s: float | None = None
    ) -> None:
        self.pids = [process.pid]
        self._process, self._log, self._oom_kills = process, log, oom_kill_count()
        self._limit_s, self._silence_s = limit_s, silence_s
        self._begun_s = time.monotonic()
        self._ended = _exit_fd(process)
        self._connections: list[Connection] = []
        self._first: Connection | None = None
        self._groups = {process.pid}
        self._failing_ranks = False
        # Of a rank that saw another rank end; reported if the other rank's own error does not arrive in time.
        self._peer_failure: WorkerError | None = None

    def accept_connections(self, listener: socket.socket, processes: int) -> None:
        """Accept connections until all processes are connected or the training process has ended."""
        while len(self._connections) < processes:
            ready, _, _ = select.select([listener.fileno(), self._ended], [], [], self._message_limit_s())
            if not ready:
                raise self._timeout_error()
            if listener.fileno() not in ready:
                break
            self._accept(listener)
            with suppress(ProcessLookupError):
                self._groups.add(os.getpgid(self.pids[-1]))
        self._groups.discard(os.getpgrp())  # a process in another PID namespace appears to have the controller's group
        if not self._connections:
            raise self.exit_error()

    def _accept(self, listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        self._connections.append(Connection(accepted))
        self.pids.append(self._connections[-1].pid)

    def messages(self) -> Iterator[Message]:
        """Yield the messages until the first rank has finished; WorkerError if one failed, ended or is hung."""
        connections = list(self._connections)
        while True:
            remaining_s = self.remaining_s()
            patience_s = EXIT_WAIT_S if self._failing_ranks else self._message_limit_s()
            waited: list[Any] = [*connections, self._ended]
            ready, _, _ = select.select(waited, [], [], patience_s)
            readable = [item for item in ready if isinstance(item, Connection)]
            if remaining_s == 0 or not (ready or self._failing_ranks):
                raise self._timeout_error()
            if not readable:
                raise self.exit_error() if ready or not self._peer_failure else self._peer_failure
            for connection, message in self._receive(readable, connections):
                if isinstance(message, Finished) and connection is self._first:
                    return
                if not self._handle_process_message(message, connection):
                    yield message

    def _receive(
        self, readable: list[Connection], connections: list[Connection]
    ) -> Iterator[tuple[Connection, Message]]:
        """Yield the messages of readable connections; remove those whose process has ended from `connections`."""
        for connection in readable:
            try:
                messages = connection.messages()
            except EOFError:
                connections.remove(connection)
                self._failing_ranks |= not connection.finished  # torchrun reports how it ended
                continue
            yield from ((connection, message) for message in messages)

    def reply(self, reply: protocol.Reply = protocol.Proceed()) -> None:  # noqa: B008 (immutable)
        """Send a reply, so that the training process continues; WorkerError if it has ended."""
        try:
            (self._first or self._connections[0]).socket.sendall(protocol.encode(reply))
        except OSError as error:
            raise self.exit_error() from error

    def exit_error(self) -> WorkerError:
        """Wait a few seconds for the end of the training process, and return the error that describes it."""
        try:
            code = self._process.wait(EXIT_WAIT_S)
            connections = list(self._connections)
            while ready := select.select(connections, [], [], 0)[0]:  # an error that was sent but not read yet
                for connection, message in self._receive(ready, connections):
                    self._handle_process_message(message, connection)
        except subprocess.TimeoutExpired:
            text = "the training process closed its connection but did not end"
            return self._peer_failure or worker_error("killed", text, f"see its log, {self._log}", self._log)
        except WorkerError as error:
            return error
        return self._code_error(code, "the training process" if len(self._connections) < 2 else "torchrun")

    def terminate(self) -> None:
        """Kill all processes; each rank may have its own process group, with its children."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        if not self._close(KILL_WAIT_S):
            text = (
                f"process {self._process.pid} was killed, but does not end: it may wait for a driver or a network disk"
            )
            hint = "restart the machine before the next measurement"
            logging.getLogger(__name__).warning(format_problem(Problem(text, hint)))

    def _close(self, limit_s: float | None) -> bool:
        """Close the connections and wait for the end of the process that was started; False after the limit."""
        for connection in self._connections:
            connection.socket.close()
        ended, _, _ = select.select([self._ended], [], [], limit_s)
        os.close(self._ended)
        return bool(ended)

    def remaining_s(self) -> float | None:
        """Return the time until `sweep.timeout_s`; None without a limit."""
        return None if self._limit_s is None else max(0.0, self._begun_s + self._limit_s - time.monotonic())

    def _message_limit_s(self) -> float | None:
        return min((limit_s for limit_s in (self.remaining_s(), self._silence_s) if limit_s is not None), default=None)

    def _timeout_error(self) -> WorkerError:
        if self.remaining_s() == 0:
            text = f"the training process took longer than sweep.timeout_s={self._limit_s:g} and was stopped"
            return worker_error("timeout", text, "raise that limit, or train fewer epochs")
        for pid in filter(None, self.pids[1:]):  # the signal to 0 would end the controller
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
        text = f"the training process made no progress for sweep.hung_after_s={self._silence_s:g} and was stopped"
        return worker_error("hung", text, f"see where it hung in its log, {self._log}", self._log)

    def _handle_process_message(self, message: Message, connection: Connection) -> bool:
        """Handle a message on the start or end of a process; False for another one, WorkerError for a failure."""
        match message:
            case Joined():
                self._first = connection if message.sends_requests else self._first
            case RankFailed():
                problem = message.problem
                if problem.code == "killed":  # a DataLoader worker was: its rank does not know why
                    raise self._kill_error(problem.message)
                if problem.code != PEER_RANK:
                    raise WorkerError(problem)
                error = WorkerError(problem._replace(code=EXCEPTION).within(f"rank {message.rank}"))
                self._peer_failure = self._peer_failure or error
                self._failing_ranks = True
            case Finished():
                connection.finished = True
            case RankExited():
                raise self._code_error(message.code, f"rank {message.rank}")
            case _:
                return False
        return True

    def _has_oom_kills(self) -> bool:
        """Whether the kernel killed a process for lack of memory since the training started."""
        return oom_kill_count() > self._oom_kills

    def _kill_error(self, what: str) -> WorkerError:
        """Return the error of a process that was killed: by the kernel for lack of memory only if it counted that."""
        if self._has_oom_kills():
            return worker_error("oom", f"{what}, because memory ran out", MEMORY_HINT)
        return worker_error("killed", what, KILL_HINT)

    def _code_error(self, code: int, process: str) -> WorkerError:
        """Return the error of a process that ended with an exit code, or was killed by a signal."""
        if code > 0 and self._peer_failure:
            return self._peer_failure
        if code == -signal.SIGKILL:
            return self._kill_error(f"{process} was killed by SIGKILL")
        if code < 0:
            time.sleep(SIGNAL_WAIT_S)  # who ends a job, as Slurm does, signals all of its processes: this one is next
            return worker_error("killed", f"{process} was killed by {signal_name(-code)}")
        lines = self._log.read_text(errors="replace").strip().splitlines()
        if any("ChildFailedError" in line for line in lines):  # torchrun reports a failed rank
            error_line = re.compile(r"(?!torch\.distributed\.)[\w.]*(Error|Exit|Exception)\b")
            lines = [line for line in lines if error_line.match(line)]
        text = f"{process} ended with exit code {code}: {lines[-1] if lines else 'no output'}"
        return worker_error(EXCEPTION, text, f"see its log, {self._log}", self._log)


def _exit_fd(process: Process) -> int:
    """Return a file descriptor that becomes readable when the process ends, also on kernels without pidfd."""
    # The end of its connection does not suffice: DataLoader workers inherit the socket and may outlive the process.
    reader, writer = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(writer)

    threading.Thread(target=wait, daemon=True).start()
    return reader


def oom_kill_count(root: Path = Path("/")) -> int:
    """Return how many processes of this one's control group the kernel has killed for lack of memory.

    The training process is in the same group. If no group is counted, all processes of the machine are.
    """
    names = "memory.events", "memory.oom_control"  # versions 2 and 1
    files = (group / name for group in control_groups("memory", root) for name in names)
    for path in (*files, root / "proc/vmstat"):
        with suppress(OSError):
            if count := re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE):
                return int(count[1])
    return 0
