"""Starts a worker and hears it out: `python -m trainmeter.worker RUN_FOLDER`, joined by a Unix socket.

While a window is open the steward sleeps in `select`; nothing here polls.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]


class WorkerError(Exception):
    """The worker ended before its work: `failure` is the tag's word for how."""

    def __init__(self, failure: str, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Worker:
    """A running worker: its messages, and answers to them."""

    def __init__(self, process: subprocess.Popen, connection: socket.socket, ended: int, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._connection = connection
        self._ended = ended
        self._log = log
        self._oom_kills = oom_kills()

    def messages(self) -> Iterator[dict]:
        """What the worker says, until it is done; WorkerError as soon as it fails or dies."""
        unread = b""
        while True:
            line, newline, rest = unread.partition(b"\n")
            if newline:
                unread = rest
                message = json.loads(line)
                if message["kind"] == "failed":
                    raise WorkerError(message["failure"], message["message"])
                if message["kind"] == "done":
                    return
                yield message
                continue
            ready, _, _ = select.select([self._connection.fileno(), self._ended], [], [])
            received = self._connection.recv(65536) if self._connection.fileno() in ready else b""
            if not received:
                raise self.death()
            unread += received

    def answer(self, **facts: object) -> None:
        """Lets the worker go on from what it asked."""
        try:
            self._connection.sendall((json.dumps(facts) + "\n").encode())
        except OSError as error:
            raise self.death() from error

    def death(self) -> WorkerError:
        """How the worker died, once it has."""
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            if code == -signal.SIGKILL and oom_kills() > self._oom_kills:
                return WorkerError("oom", "the kernel killed the worker for want of memory (SIGKILL)")
            return WorkerError("killed", f"the worker was killed by {name}")
        return WorkerError("exception", f"the worker ended with code {code}: {_last_line(self._log)}")


@contextmanager
def started(folder: Path, python: str | None) -> Iterator[Worker]:
    """A worker for the job in `folder`, run by the interpreter `python`; ended, with all its children, on leaving."""
    log = folder / "worker.log"
    desk = Path(tempfile.mkdtemp(prefix="trainmeter-", dir=_node_local()))
    process, ended = None, None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, open(log, "wb") as output:
            listener.bind(str(desk / "link"))
            listener.listen(1)
            process = _spawn(folder, python, desk / "link", output)
            ended = _end_of(process)
            ready, _, _ = select.select([listener.fileno(), ended], [], [])
            if listener.fileno() not in ready:
                raise WorkerError("exception", f"the worker did not start: {_last_line(log)}")
            connection, _ = listener.accept()
        with connection:
            yield Worker(process, connection, ended, log)
            process.wait()
    finally:
        if process is not None:
            _end(process)
        if ended is not None:
            os.close(ended)
        shutil.rmtree(desk, ignore_errors=True)


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except OSError:
        return 0
    return int(counts.get("oom_kill", 0))


def _spawn(folder: Path, python: str | None, link: Path, output) -> subprocess.Popen:
    interpreter = shutil.which(python or sys.executable)
    if interpreter is None:
        raise ValueError(f"device.python={python}: there is no such program. Name the interpreter that has torch.")
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "TRAINMETER_SOCKET": str(link),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
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
