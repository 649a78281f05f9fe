"""Starts a worker and hears it out: `python -m trainmeter.worker RUN_FOLDER`, joined by a Unix socket.

While a window is open the steward sleeps in `select`; nothing here polls.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]


LEAVING_S = 10.0
"""How long a worker that has said it is done may take to end."""


class WorkerError(Exception):
    """The worker ended before its work: `failure` is the tag's word for how."""

    def __init__(self, failure: str, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Worker:
    """A running worker: its messages, and answers to them."""

    def __init__(
        self, pid: int, connection: socket.socket, ended: int, oom_kills: int, death: Callable[[], WorkerError]
    ) -> None:
        self.pid = pid
        self.death = death
        self._connection = connection
        self._ended = ended
        self._oom_kills = oom_kills  # before it started

    def messages(self) -> Iterator[dict]:
        """What the worker says, until it is done; WorkerError as soon as it fails or dies."""
        unread = b""
        while True:
            line, newline, rest = unread.partition(b"\n")
            if newline:
                unread = rest
                message = json.loads(line)
                if message["kind"] == "failed":
                    # A loader process that the kernel killed is but an exception to the worker.
                    killed = oom_kills() > self._oom_kills
                    raise WorkerError("oom" if killed else message["failure"], message["message"])
                if message["kind"] == "done":
                    return
                yield message
                continue
            ready, _, _ = select.select([self._connection.fileno(), self._ended], [], [])
            received = self._received() if self._connection.fileno() in ready else b""
            if not received:
                raise self.death()
            unread += received

    def answer(self, **facts: object) -> None:
        """Lets the worker go on from what it asked."""
        try:
            self._connection.sendall((json.dumps(facts) + "\n").encode())
        except OSError as error:
            raise self.death() from error

    def _received(self) -> bytes:
        """What has come; nothing once the worker is gone, also where it left an answer unread."""
        try:
            return self._connection.recv(65536)
        except ConnectionResetError:
            return b""


@contextmanager
def started(folder: Path, python: str | None, gpus: Sequence[str] = ()) -> Iterator[Worker]:
    """A worker for the job in `folder`, run by the interpreter `python`; ended, with all its children, on leaving.

    Of the GPUs it sees those in `gpus` alone, by their UUIDs: it trains on what is metered.
    """
    log = folder / "worker.log"
    process, ended = None, None
    oom_kills_before = oom_kills()
    try:
        with _listener() as listener, open(log, "wb") as output:
            process = _spawn(folder, python, gpus, listener.getsockname(), output)
            death = partial(_death, process, log, oom_kills_before)
            ended = _end_of(process)
            ready, _, _ = select.select([listener.fileno(), ended], [], [])
            if listener.fileno() not in ready:
                raise death()
            connection, _ = listener.accept()
        with connection:
            yield Worker(process.pid, connection, ended, oom_kills_before, death)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVING_S)
    finally:
        if process is not None:
            _end(process)
        if ended is not None:
            os.close(ended)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def _death(process: subprocess.Popen, log: Path, oom_kills_before: int) -> WorkerError:
    """How the worker died, once it has."""
    code = process.wait()
    if code == -signal.SIGKILL and oom_kills() > oom_kills_before:
        return WorkerError("oom", "the kernel killed the worker for want of memory (SIGKILL)")
    if code < 0:
        return WorkerError("killed", f"the worker was killed by {signal.Signals(-code).name}")
    last = _last_line(log)
    remedy = " Name the interpreter that has torch by device.python." if "No module named 'torch" in last else ""
    return WorkerError("exception", f"the worker ended with code {code}: {last}.{remedy} All it said: {log}")


@contextmanager
def _listener() -> Iterator[socket.socket]:
    """A socket to join; its path is gone on leaving, so that a steward that is killed later leaves none behind."""
    with (
        tempfile.TemporaryDirectory(prefix="trainmeter-", dir=_node_local()) as desk,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        listener.bind(os.path.join(desk, "link"))
        listener.listen(1)
        yield listener


def _spawn(folder: Path, python: str | None, gpus: Sequence[str], link: str, output) -> subprocess.Popen:
    interpreter = shutil.which(python or sys.executable)
    if interpreter is None:
        raise ValueError(f"device.python={python}: there is no such program. Name the interpreter that has torch.")
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TRAINMETER_SOCKET": link,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **_seeing(gpus),
    }
    # A session of its own: Ctrl-C reaches the steward alone, which then ends the worker with all its children.
    return subprocess.Popen(
        [interpreter, "-m", "trainmeter.worker", str(folder)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _seeing(gpus: Sequence[str]) -> dict[str, str]:
    """The environment in which a process sees these GPUs alone; as it is where they have no UUIDs to name them by."""
    names = ",".join(gpus)
    if not gpus or not all(name.startswith(("GPU-", "MIG-")) for name in gpus):
        return {}
    if not re.fullmatch(r"(GPU-[\da-f]{16},?)+", names):
        return {"CUDA_VISIBLE_DEVICES": names}
    # ROCm's UUIDs have 16 digits. HIP numbers what they leave, and would look there for numbers that are gone.
    return {"ROCR_VISIBLE_DEVICES": names, "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(gpus))))}


def _end_of(process: subprocess.Popen) -> int:
    """A descriptor that becomes readable when the process ends.

    The socket's end alone would not do: loader processes inherit it, and outlive a worker that is killed. A thread
    that waits costs nothing, and works on kernels that have no pidfd.
    """
    reader, writer = os.pipe()

    def wait() -> None:
        process.wait()
        os.close(writer)

    threading.Thread(target=wait, daemon=True).start()
    return reader


def _end(process: subprocess.Popen) -> None:
    """Ends the worker and its children, which share its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _node_local() -> str:
    """A short folder for the socket: its path has room for 107 bytes, and $TMPDIR may be long or on a network."""
    return "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
