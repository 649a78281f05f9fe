"""A user's training script as the training process: its input, output, signals and exit code are unchanged."""

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from epochmeter.config.installation import PACKAGE
from epochmeter.config.script import ATTACHED, filled_command, find_program, is_program
from epochmeter.machine.gpus import matches_uuid
from epochmeter.machine.signals import deferred_signals
from epochmeter.results.rank_merge import SUM_KEYS
from epochmeter.results.run_result import RunResult
from epochmeter.run import launch
from epochmeter.run.plan import Plan
from epochmeter.run.worker_process import Connection, Process, StartingScript, WorkerError, WorkerProcess
from epochmeter.shared import protocol
from epochmeter.shared.process_identity import has_exited
from epochmeter.shared.record import TRACE
from epochmeter.shared.units import NANOSECOND

AGENT_PATH = PACKAGE / "agent/path"
NO_TORCH = "no process of the script imported torch (with Python -I, -E or -S, no process is measured)"
NO_PASS = "no pass over a torch DataLoader was seen"
LOST = "the connection to {} was lost: its training after the last recorded epoch is not measured"
ANOTHER_PROCESS = "only the first process that reads a DataLoader or trains is measured, and another one did so too"
UNKNOWN = "unknown for a script: loss, accuracy, FLOPs,{} and the time of copies to the device (part of compute)."
NO_FILES = " page cache and disk reads (`measure.data=` names the files),"
NOT_METERED = (
    "{} trained, but {} is metered\n"
    "  hint: give the launcher the number of ranks, as in `torchrun --nproc_per_node=2`, or set CUDA_VISIBLE_DEVICES"
)
NO_WINDOW = "rank {} trained no epoch at the time of the first rank's: its times, and sums over ranks, are absent"
OUT_OF_MEMORY = ", after the kernel killed a process, because memory ran out\n  hint: reduce the batch size"
LAST_MESSAGES = (protocol.Finished, protocol.RankFailed, protocol.NotMeasured)
"""One of these precedes the end of a connection, unless its process was killed, forked or has closed all files."""
RANK_WAIT_S = 1.0  # how long the first rank waits, between windows, for the measurements of another rank
NO_EPOCH = (
    "no epoch of training was measured: {}\n"
    "  hint: docs/scripts.md lists the loops that are measured; `epochmeter.Meter` in the script measures others"
)


class ScriptProcess(WorkerProcess):
    """The running script: it is never ended by the controller, and its messages end when it ends.

    Its processes connect whenever they begin to train. The first rank waits for replies; the windows of the other ranks
    arrive without waiting for one, and are merged with those of the first rank.
    """

    def __init__(self, process: Process, listener: socket.socket, error: WorkerError | None = None) -> None:
        super().__init__(process, Path(os.devnull))
        self._attached = process if isinstance(process, StartingScript) else None
        self._error = error  # of an attached script, unless it closes its `Meter`
        self.trace_error = "no trace: the last warm-up epoch was not measured"
        self.remarks: list[str] = []  # why an agent in the script stopped measuring, or discarded a window
        self.others: dict[Connection, int] = {}  # ranks other than the first
        self.gpus: set[str] = set()  # their UUIDs, as far as they are reported
        self._listener = listener
        self._open: list[Connection] = []
        self._is_recorded = False  # whether a window of the first rank was measured
        self._from_first_rank: deque[protocol.Message] = deque()  # messages of the first rank that were not yielded yet
        self._windows: list[tuple[int, str | None, protocol.RankWindow]] = []  # of other ranks, with rank and kind
        self._silent: set[tuple[int, str | None]] = set()  # ranks, and kinds of window, that are not waited for

    def messages(self) -> Iterator[protocol.Message]:
        """Yield the messages of the first rank until the script ends; WorkerError if not with exit code 0."""
        kind = None
        while self._receive_any(None):
            while self._from_first_rank:
                message = self._from_first_rank.popleft()
                if isinstance(message, protocol.WindowClosed):
                    kind = message.window
                self._is_recorded |= isinstance(message, protocol.WindowMeasured)
                yield self._merged(message, kind) if isinstance(message, protocol.WindowMeasured) else message
        code = self._process.wait()
        if code > 0:  # of a launcher or a shell, if a process of the script was killed
            failure, cause = ("oom", OUT_OF_MEMORY) if self._has_oom_kills() else ("exception", "")
            raise WorkerError(failure, f"the script ended with exit code {code}{cause}")
        if code < 0:
            raise self._code_error(code, "the script")
        if self._attached and self._error:
            raise WorkerError("exception", self.remarks[-1]) if self.remarks else self._error
        for connection in filter(None, (self._first, *self.others)):
            if connection.is_in_window and not connection.finished:
                self._note_loss(connection)

    def _receive_any(self, limit_s: float | None) -> bool:
        """Wait for messages of any process, and sort them; False after this time, and if the script has ended."""
        waited: list[Any] = [self._listener, *self._open, self._ended]
        ready, _, _ = select.select(waited, [], [], limit_s)
        readable = [item for item in ready if isinstance(item, Connection)]
        if self._listener in ready:
            self._accept(self._listener)
            self._open.append(self._connections[-1])
        for connection, message in self._receive(readable, self._open):
            if connection in self._open:  # it was not refused by an earlier one of these messages
                self._sort(connection, message)
        for connection in (item for item in readable if item not in self._open):
            is_measured = connection is self._first or connection in self.others
            if is_measured and not connection.finished and not has_exited(connection.pid):
                self._note_loss(connection)
        if self._attached and self._connections and not self._open:
            self._attached.ended.set()
        return bool(readable) or self._listener in ready

    def _sort(self, connection: Connection, message: protocol.Message) -> None:
        """Keep a message of the first rank for `messages`, and the reports of the other ranks for `_merged`."""
        rank = self.others.get(connection)
        connection.finished = isinstance(message, LAST_MESSAGES)
        if isinstance(message, (protocol.WindowOpening, protocol.WindowClosed)):
            connection.is_in_window = isinstance(message, protocol.WindowOpening)
        match message:
            case protocol.Joined(sends_requests=False, rank=int(rank)):
                self.others[connection] = rank
            case protocol.Joined():
                if self._first in self._open or self._is_recorded:
                    self._remark(ANOTHER_PROCESS)
                    self._open.remove(connection)
                    connection.socket.close()
                else:
                    self._first = connection
                    self.remarks.clear()  # reasons why an earlier process was not measured
            case protocol.TraceFailed():
                self.trace_error = message.reason
                self._from_first_rank.append(message)
            case protocol.Finished():
                self._error = None
            case protocol.RankFailed():
                self._error = WorkerError(message.failure, message.message)
            case protocol.NotMeasured():
                self._remark(message.reason if rank is None else f"rank {rank}: {message.reason}")
            case _ if rank is None:
                self._from_first_rank.append(message)
            case protocol.Built():
                self.gpus |= {message.training.get("gpu", {}).get("uuid")} - {None}
            case protocol.WindowClosed():
                connection.closed_window = message.window
            case protocol.WindowMeasured():
                self._windows.append((rank, connection.closed_window, message.ranks[0]))
                self._silent.discard((rank, connection.closed_window))  # it was late

    def _note_loss(self, connection: Connection) -> None:
        rank = self.others.get(connection)
        self._remark(LOST.format("the script" if rank is None else f"rank {rank}"))

    def _remark(self, remark: str) -> None:
        if remark not in self.remarks:
            self.remarks.append(remark)

    def _merged(self, message: protocol.WindowMeasured, kind: str | None) -> protocol.WindowMeasured:
        """Return the window of the first rank with those of the other ranks at that time, if they arrive soon."""
        first, until_s = message.ranks[0], time.monotonic() + RANK_WAIT_S
        middle_ns = (first.opened_ns + first.closed_ns) // 2
        while True:
            same = [(rank, window) for rank, other, window in self._windows if other == kind]
            others = {rank: window for rank, window in same if window.opened_ns < middle_ns < window.closed_ns}
            running = [self.others[connection] for connection in self._open if connection in self.others]
            missing = {(rank, kind) for rank in running if rank not in others} - self._silent
            if not missing or not self._receive_any(max(0.0, until_s - time.monotonic())):
                break
        self._silent |= missing
        self.remarks += [NO_WINDOW.format(rank) for rank, _ in sorted(missing) if kind == "epoch"]
        self._windows = [entry for entry in self._windows if entry[2].closed_ns > first.closed_ns]
        if len(others) < len(self.others):
            first = first._replace(parts={key: part for key, part in first.parts.items() if key not in SUM_KEYS})
        return message._replace(ranks=[first, *(clipped(others[rank], first) for rank in sorted(others))])

    def reply(self, reply: protocol.Reply = protocol.Proceed()) -> None:  # noqa: B008 (immutable)
        """Send a reply, unless the agent is gone."""
        with suppress(OSError):
            if self._first:
                self._first.socket.sendall(protocol.encode(reply))

    @property
    def exit_code(self) -> int | None:
        """The script's exit code; None if it has not ended."""
        return self._process.returncode

    def terminate(self) -> None:
        """Stop measuring, and wait for the end of the script."""
        self._listener.close()
        if self._attached:
            self._attached.ended.set()
        self._close(None)


def clipped(window: protocol.RankWindow, first: protocol.RankWindow) -> protocol.RankWindow:
    """Return a rank's window without the time in which it waits for the first rank, as after an evaluation."""
    early_s = max(0, first.opened_ns - window.opened_ns) * NANOSECOND
    stall_s = min(early_s, window.parts.get("loader_start_s", 0.0))  # absent without a DataLoader
    removed = {"e2e_s": early_s, **dict.fromkeys(("data_stall_s", "host_wait_s", "loader_start_s"), stall_s)}
    first_gap_s = min(early_s, window.parts.get("first_gap_s", 0.0))
    removed["overhead_s"] = max(0.0, first_gap_s - stall_s)
    removed["compute_s"] = min(early_s - stall_s - removed["overhead_s"], window.parts.get("compute_s", 0.0))
    parts = {name: part - removed.get(name, 0.0) for name, part in window.parts.items() if name != "first_gap_s"}
    times = max(first.opened_ns, window.opened_ns), min(first.closed_ns, window.closed_ns)
    return window._replace(opened_ns=times[0], closed_ns=times[1], parts=parts)


@contextmanager
def running_script(plan: Plan, result: RunResult) -> Iterator[ScriptProcess]:
    """Start a plan's script, and wait for its end when the `with` block ends; its exit code is set in the result.

    RuntimeError at the end of the block if nothing was measured, or if a GPU of the script is not metered.
    """
    with passed_signals(repeated=plan.request.of_sweep) as pass_to, launch.listening_socket() as listener:
        agent = {
            "socket": listener.getsockname(),
            "folder": str(plan.record.folder.resolve()),
            "steps_per_window": plan.job.measure.steps_per_window,
        }
        if plan.job.profiler.name == "torch":
            steps = {key: plan.job.profiler.spec[key] for key in ("warmup_steps", "steps")}
            agent["trace"] = {"epoch": max(0, plan.job.warmup_epochs - 1), **steps}
        worker = start_script(plan, json.dumps(agent), pass_to, listener)
        try:
            yield worker
        finally:
            worker.terminate()
            result.exit_code = worker.exit_code
            is_traced = "trace" not in agent or (plan.record.folder / TRACE).exists()
            result.notes += [] if is_traced else [worker.trace_error]
            result.notes += worker.remarks
            if plan.record.windows():
                result.notes.append(UNKNOWN.format("" if plan.job.measure.data else NO_FILES))
        has_torch = os.path.exists(agent["socket"] + protocol.IMPORTED) or ATTACHED in os.environ
        check_trained(worker, plan, NO_PASS if has_torch else NO_TORCH)


def start_script(
    plan: Plan, agent: str, pass_to: Callable[[subprocess.Popen[bytes]], None], listener: socket.socket
) -> ScriptProcess:
    """Start a script, or give the arguments of the agent to the script that started this process."""
    if ATTACHED in os.environ:
        script = StartingScript()  # before the message: if it is delivered, the parent process is the script
        try:
            with open(int(os.environ[ATTACHED]), "w") as pipe:
                pipe.write(agent + "\n")
        except BrokenPipeError:
            script.ended.set()
        killed = WorkerError("killed", "the script ended, but did not close its Meter")
        is_notebook = is_program(plan.job.measure.command)  # which need not close it
        return ScriptProcess(script, listener, None if is_notebook else killed)
    command = filled_command(plan.job)
    if is_program(command):
        command[0] = find_program(command[0]) or command[0]
    else:
        command.insert(0, launch.find_interpreter(plan.job.device.python))
    path = os.pathsep.join(filter(None, (str(AGENT_PATH), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path, "EPOCHMETER_AGENT": agent})
    pass_to(process)
    return ScriptProcess(process, listener)


def check_trained(worker: ScriptProcess, plan: Plan, unseen: str) -> None:
    """Raise RuntimeError if nothing of a script was measured, or not all of its GPUs.

    `unseen` is the reason if no process of the script gave one.
    """
    if not plan.record.windows():
        raise RuntimeError(NO_EPOCH.format("; ".join(worker.remarks) or unseen))
    for uuid in sorted(worker.gpus):
        if plan.gpus and not any(matches_uuid(uuid, gpu) for gpu in plan.gpus):
            raise RuntimeError(NOT_METERED.format(f"GPU-{uuid}", ",".join(plan.gpus)))
    ranks = len(worker.others) + 1
    if plan.job.machine.root == "/" and len(plan.gpus) > ranks:
        raise RuntimeError(NOT_METERED.format(f"{ranks} ranks", ",".join(plan.gpus)))


@contextmanager
def passed_signals(*, repeated: bool) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Pass signals that would stop this process to each process for which the yielded function is called.

    A process also gets the signals that arrived before it started. If `repeated`, the first signal stops this process
    too, when the `with` block ends.
    """
    processes: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def pass_on(number: int) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and is_in_foreground():
            return  # the terminal sends it to the script too
        for process in processes:
            process.send_signal(number)

    def pass_to(process: subprocess.Popen[bytes]) -> None:
        processes.append(process)
        for number in received:
            process.send_signal(number)

    try:
        with deferred_signals(pass_on) as received:
            yield pass_to
    finally:
        if repeated and received:
            signal.raise_signal(received[0])


def is_in_foreground() -> bool:
    """Return whether this process is in the foreground of a terminal, whose keys signal all of its processes."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
