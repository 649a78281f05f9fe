"""A user's training script as the training process: its input, output, signals and exit code are unchanged."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from epochmeter.config.installation import PACKAGE
from epochmeter.machine.signals import STOP_SIGNALS
from epochmeter.results.run_result import RunResult
from epochmeter.run import launch
from epochmeter.run.plan import Plan
from epochmeter.run.worker_process import WorkerError, WorkerProcess, oom_kill_count
from epochmeter.shared import protocol
from epochmeter.shared.protocol import Message
from epochmeter.shared.record import Record

AGENT_PATH = PACKAGE / "agent/path"
NO_PASS = "no pass over a torch DataLoader was seen"
UNKNOWN = "unknown for a script: loss, accuracy, FLOPs, and the time of copies to the device (part of compute)."
NO_EPOCH = "no epoch of training was measured: {}\n  hint: docs/scripts.md lists the loops that are measured"


class ScriptProcess(WorkerProcess):
    """The running script: it is never ended by the controller, and its messages end when it ends."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process, Path(os.devnull), oom_kill_count())
        self.remarks: list[str] = []
        """Why the agent in the script stopped measuring, or discarded a window."""

    def messages(self) -> Iterator[Message]:
        """Yield the agent's messages until the script ends; WorkerError if it does not end with exit code 0."""
        connections = list(self._connections)
        while True:
            waited: list[Any] = [*connections, self._ended]
            ready, _, _ = select.select(waited, [], [])
            readable = [item for item in ready if item is not self._ended]
            if not readable:
                break
            for _, message in self._receive(readable, connections):
                if isinstance(message, protocol.NotMeasured):
                    self.remarks.append(message.reason)
                elif not isinstance(message, protocol.Joined):
                    yield message
        code = self._process.wait()
        if code > 0:
            raise WorkerError("exception", f"the script ended with exit code {code}")
        if code < 0:
            raise WorkerError("killed", f"the script was ended by {signal.Signals(-code).name}")

    def reply(self, reply: protocol.Reply = protocol.Proceed()) -> None:  # noqa: B008 (immutable)
        """Send a reply, unless the agent is gone."""
        with suppress(OSError):
            self._connections[0].socket.sendall(protocol.encode(reply))

    def terminate(self) -> None:
        """Stop measuring, and wait for the end of the script."""
        for connection in self._connections:
            connection.socket.close()
        self._process.wait()
        os.close(self._ended)


@contextmanager
def running_script(plan: Plan, outcome: RunResult) -> Iterator[ScriptProcess]:
    """Start a plan's script, and wait for its end when the `with` block ends; its exit code is set in the outcome."""
    command = plan.job.measure.command
    assert command
    with passed_signals() as processes:
        with launch.listening_socket() as listener:
            agent = {
                "socket": listener.getsockname(),
                "folder": str(plan.record.folder.resolve()),
                "steps_per_window": plan.job.measure.steps_per_window,
            }
            path = os.pathsep.join(filter(None, (str(AGENT_PATH), os.environ.get("PYTHONPATH"))))
            process = subprocess.Popen(
                [launch.find_interpreter(plan.job.device.python), *command],
                env={**os.environ, "PYTHONPATH": path, "EPOCHMETER_AGENT": json.dumps(agent)},
            )
            processes.append(process)
            worker = ScriptProcess(process)
            with suppress(WorkerError):  # it ended without a connection, which `messages` reports
                worker.accept_connections(listener, 1)
        try:
            yield worker
        finally:
            worker.terminate()
            outcome.exit_code = process.returncode
            outcome.notes += [*worker.remarks, UNKNOWN]


def check_trained(worker: ScriptProcess, record: Record) -> None:
    """Raise RuntimeError if nothing of a script was measured, with the reason."""
    if not record.windows():
        raise RuntimeError(NO_EPOCH.format("; ".join(worker.remarks) or NO_PASS))


@contextmanager
def passed_signals() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Pass signals that would stop this process to the processes in the yielded list.

    A terminal sends Ctrl-C and Ctrl-\\ to the script itself.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and is_in_foreground():
            return
        for process in processes:
            process.send_signal(number)

    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    passed = [number for number, handler in handlers.items() if handler is not signal.SIG_IGN]
    try:
        for number in passed:
            signal.signal(number, pass_on)
        yield processes
    finally:
        for number in passed:
            signal.signal(number, handlers[number])


def is_in_foreground() -> bool:
    """Return whether this process is in the foreground of a terminal, whose keys signal all of its processes."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
