"""A user's training script as the training process: its input, output, signals and exit code are unchanged.

Only in a replayed run, which measures the script without data stalls, its output is kept in the record, and it may be
ended.
"""

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from epochmeter.config.installation import PACKAGE
from epochmeter.config.request import users_environment
from epochmeter.config.schema import Job
from epochmeter.config.script import ATTACHED, RANKS_HINT, filled_command, find_program, is_program
from epochmeter.machine.gpus import matches_uuid
from epochmeter.machine.signals import deferred_signals
from epochmeter.results.run_result import RunResult, slurm_problem
from epochmeter.results.summary import averaged_epochs
from epochmeter.run import launch
from epochmeter.run.event_folder import STARTED, event_folder
from epochmeter.run.interpreters import find_interpreter
from epochmeter.run.moments import read_moment
from epochmeter.run.plan import Plan
from epochmeter.run.replaying import NONE_REPLAYED, NOTE, end_processes
from epochmeter.run.worker_process import Connection, Process, StartingScript, WorkerError, WorkerProcess, worker_error
from epochmeter.shared import protocol
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.events import AGENT_VARIABLE
from epochmeter.shared.events_version import events_version
from epochmeter.shared.problem import EXCEPTION, MachineError, Problem, format_problem, machine_error
from epochmeter.shared.process_identity import has_exited, identify
from epochmeter.shared.record import TRACE, WORKER_LOG
from epochmeter.shared.types import Document

if TYPE_CHECKING:
    from epochmeter.segmentation.script import ScriptWindows

AGENT_PATH = PACKAGE / "agent/path"
NOT_WITH = " (with Python -I, -E or -S, no process is measured)"
NO_TORCH = "no process of the script imported torch" + NOT_WITH
NO_PASS = "no pass over a torch DataLoader was seen" + NOT_WITH
UNKNOWN = "unknown for a script: loss, accuracy,{} and the time of copies to the device (part of compute)"
NO_FILES = " page cache and disk reads (`measure.data=` names the files),"
NO_FLOPS = " FLOPs (`measure.flops=true` counts them),"
NO_TRACE = Problem("no trace: the last warm-up epoch was not measured")
MODULE_HINT = (
    "install it there, activate the environment that has it, or, without a launcher, give `device.python=PATH`"
)
RAY_HINT = (
    "unset RAY_ADDRESS, so that `ray.init()` starts its workers here; those of a running cluster are not measured"
)
LOOPS_HINT = "docs/scripts.md lists the loops that are measured; `epochmeter.Meter` in the script measures others"


class ScriptProcess(WorkerProcess):
    """The running script; its processes connect when they have begun to train.

    The controller ends it only by `stop`, and if it is replayed.

    Attributes:
        remarks: Why an agent in the script stopped measuring, each reason once.
        is_at_border: Whether a pass over data has begun or ended since the last call of `receive`.
        openings: Processes that wait until the page cache is prepared.
        questions: Processes that wait for the measurement of a window, with their names in its logs.
        traced: Messages on the profiler's trace.
        loaded: Messages on batches that were not replayed.
        not_replayed: Why the script cannot be replayed, if so.
        end_note: Why a replayed script was ended; empty if it has ended itself, or cannot be replayed.
        ended: Names of the processes that have ended.
        ended_ns: When the script ended; None before that.
    """

    def __init__(
        self,
        process: Process,
        listener: socket.socket,
        error: WorkerError | None = None,
        log: Path | None = None,
    ) -> None:
        """`log` has the output of a replayed script; None: the script is not replayed."""
        super().__init__(process, log or Path(os.devnull))
        self.remarks: list[Problem] = []
        self.is_at_border = False
        self.openings: list[Connection] = []
        self.questions: list[tuple[Connection, protocol.Asked]] = []
        self.traced: list[protocol.Traced | protocol.TraceFailed] = []
        self.loaded: list[protocol.Loaded] = []
        self.not_replayed: Problem | None = None
        self.ended: set[str] = set()
        self.ended_ns: int | None = None
        self._is_replayed, self._was_ended, self.end_note = log is not None, False, ""
        self._attached = process if isinstance(process, StartingScript) else None
        self._error = error  # of an attached script, unless it closes its `Meter`
        self._listener = listener
        self._open: list[Connection] = []
        self._ranks: dict[Connection, int] = {}  # those other than the first of the node

    def receive(self, limit_s: float) -> bool:
        """Wait at most this time for messages, and sort them; return whether the script still runs."""
        self.is_at_border = False
        waited: list[Any] = [self._listener, *self._open, self._ended]
        ready, _, _ = select.select(waited, [], [], limit_s)
        readable = [item for item in ready if isinstance(item, Connection)]
        if self._listener in ready:
            self._accept(self._listener)
            self._open.append(self._connections[-1])
        for connection, message in self._receive(readable, self._open):
            self._sort(connection, message)
        for connection in readable:
            if connection not in self._open and has_exited(connection.pid):
                self.ended.add(str(connection.pid))
        if self._attached and self._connections and not self._open:
            self._attached.ended.set()
        if self._ended in ready and self.ended_ns is None:
            self.ended_ns = time.monotonic_ns()
        return bool(readable) or self._listener in ready or self._ended not in ready

    def end_replayed(self, note: str) -> None:
        """End all processes of a script that is replayed, for the reason in a note."""
        assert self._is_replayed, "only a replayed script may be ended"
        self.end_note, self._was_ended = note, True
        end_processes(self.pids)

    def check_end(self) -> None:
        """Wait for the end of the script; WorkerError if it has failed, or could not be replayed."""
        code = self._process.wait()
        if self.not_replayed:
            raise WorkerError(self.not_replayed)
        if self._was_ended:
            return
        if code > 0:  # of a launcher or a shell, if a process of the script was killed
            raise self._exit_code_error(f"the script ended with exit code {code}")
        if code < 0:
            raise self._code_error(code, "the script")
        if self._attached and self._error:
            raise WorkerError(self.remarks[-1]) if self.remarks else self._error

    def _exit_code_error(self, ended: str) -> WorkerError:
        """Return the error of an exit code, with the cause if it is known: memory, or a missing module."""
        if self._has_oom_kills():
            text = f"{ended}, after the kernel killed a process, because memory ran out"
            return worker_error("oom", text, "reduce the batch size")
        try:
            interpreter, module = json.loads(Path(self._listener.getsockname() + protocol.MISSING).read_text())
        except (OSError, ValueError):
            return worker_error(EXCEPTION, ended, f"see its output, {self._log}" if self._is_replayed else "")
        return worker_error(EXCEPTION, f"{ended}, as {interpreter} has no module `{module}`", MODULE_HINT)

    def _sort(self, connection: Connection, message: protocol.Message) -> None:
        match message:
            case protocol.Joined(sends_requests=False, rank=int(joined)):
                self._ranks[connection] = joined
            case protocol.Border():
                self.is_at_border = True
            case protocol.PassOpening():
                self.openings.append(connection)
            case protocol.Asked():
                self.questions.append((connection, message))
            case protocol.Traced() | protocol.TraceFailed():
                self.traced.append(message)
            case protocol.Loaded():
                self.loaded.append(message)
            case protocol.NotReplayed():
                self.not_replayed = message.problem
            case protocol.Finished():
                connection.finished = True
                self._error = None
            case protocol.RankFailed():
                connection.finished = True
                self._error = WorkerError(message.problem)
            case protocol.NotMeasured():
                rank = self._ranks.get(connection)
                remark = message.problem if rank is None else message.problem.within(f"rank {rank}")
                self.remarks += [] if remark in self.remarks else [remark]

    @staticmethod
    def answer(connection: Connection, reply: protocol.Reply) -> None:
        """Send a reply to a process that waits for it, unless it is gone."""
        with suppress(OSError):
            connection.socket.sendall(protocol.encode(reply))

    def stop(self) -> None:
        """End the script by SIGTERM, which it may handle; its end is no failure then."""
        if not self._was_ended:
            self._was_ended = True
            for pid in filter(None, self.pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    @property
    def is_ending(self) -> bool:
        """Whether its processes that were measured have ended their work: Python takes a second to free torch."""
        return self._attached is None and bool(self._connections) and not self._open

    @property
    def exit_code(self) -> int | None:
        """The script's exit code, 0 if it was ended; None if it has not ended."""
        return 0 if self._was_ended else self._process.returncode

    def terminate(self) -> None:
        """Stop measuring, and wait for the end of the script."""
        self._listener.close()
        if self._attached:
            self._attached.ended.set()
        self._close(None)


class RunningScript(NamedTuple):
    """The process of a script, and the windows that its events show."""

    script: ScriptProcess
    windows: "ScriptWindows"


@contextmanager
def running_script(plan: Plan, result: RunResult) -> Iterator[RunningScript]:
    """Start a plan's script, and wait for its end when the `with` block ends; its exit code is set in the result.

    RuntimeError at the end of the block if nothing was measured, or if a GPU of the script is not metered.
    """
    with (
        passed_signals(repeated=plan.request.of_sweep) as (pass_to, received),
        launch.listening_socket() as listener,
        event_folder(plan.record, plan.run.record_id) as folder,
    ):
        agent: dict[str, Any] = {
            "socket": listener.getsockname(),
            "logs": str(folder),
            "folder": str(plan.record.folder.resolve()),
            "counts": plan.job.measure.flops,
            "prepares_passes": plan.job.measure.data is not None and plan.job.cache != "keep",
        }
        if plan.job.measure.loader:
            agent["loader"] = plan.job.measure.loader
        if plan.job.measure.replay:
            agent["replay"] = plan.job.measure.steps_per_window
        if traced_epoch(plan.job) is not None:
            steps = {key: plan.job.profiler.spec[key] for key in ("warmup_steps", "steps")}
            agent["trace"] = {"epoch": traced_epoch(plan.job), **steps}
        moments = plan.run.moments
        moments["process_ns"] = moments["command_ns"] if ATTACHED in os.environ else time.monotonic_ns()
        script = start_script(plan, agent, pass_to, listener)
        if ATTACHED not in os.environ:
            with suppress(OSError):  # the disk is full: the processes with logs are known
                write_json(folder / STARTED, identify(script.pids[0])._asdict())
        from epochmeter.segmentation.script import ScriptWindows  # while the script's process starts

        windows = ScriptWindows(folder, plan.job.measure.steps_per_window)
        try:
            with ended_by_slurm(received):
                yield RunningScript(script, windows)
        finally:
            script.terminate()
            moments["ended_ns"], moments["saves_ns"] = script.ended_ns or time.monotonic_ns(), windows.saves_ns
            imported_ns = read_moment(Path(agent["socket"] + protocol.IMPORTED))
            if imported_ns is not None:
                moments["imported_ns"] = imported_ns
            result.exit_code = script.exit_code
            if "trace" in agent and not (plan.record.folder / TRACE).exists():
                failed = [message.problem for message in script.traced if isinstance(message, protocol.TraceFailed)]
                result.notes += map(format_problem, failed or [NO_TRACE])
            result.notes += [*map(format_problem, script.remarks), *windows.notes]
            plan.set_flags(windows.flags)
            if plan.job.measure.replay:
                result.notes += filter(None, [NOTE, script.end_note])
            if plan.record.windows():
                result.notes.append(unknown_note(plan.job))
        has_torch = os.path.exists(agent["socket"] + protocol.IMPORTED) or ATTACHED in os.environ
        unseen = windows.reason or (NO_PASS if has_torch else NO_TORCH)
        remarks = [remark.message for remark in script.remarks]
        check_trained(windows, plan, [*dict.fromkeys([*remarks, *windows.notes])] or [unseen])
        if script.loaded and not averaged_epochs(plan.record.windows(), plan.job.warmup_epochs):
            raise MachineError(NONE_REPLAYED)


@contextmanager
def ended_by_slurm(received: Sequence[int]) -> Iterator[None]:
    """Raise why Slurm has ended a script, if the received signals are Slurm's.

    The error of the script follows from that. Without an error, it is not complete either.
    """
    try:
        yield
    except WorkerError as error:
        if signal.SIGTERM in received and (cause := slurm_problem()):
            raise WorkerError(cause) from error
        raise
    if signal.SIGTERM in received and (cause := slurm_problem()):
        raise WorkerError(cause)


def traced_epoch(job: Job) -> int | None:
    """Return the epoch of a script of which steps are traced, from 0 on; None if none is."""
    return max(0, job.warmup_epochs - 1) if job.profiler.name == "torch" else None


def unknown_note(job: Job) -> str:
    """Return a note on what is not known of a script."""
    return UNKNOWN.format(("" if job.measure.flops else NO_FLOPS) + ("" if job.measure.data else NO_FILES))


def start_script(
    plan: Plan, agent: Document, pass_to: Callable[[subprocess.Popen[bytes]], None], listener: socket.socket
) -> ScriptProcess:
    """Start a script, or give the arguments of the agent to the script that started this process."""
    if ATTACHED in os.environ:
        script = StartingScript()  # before the message: if it is delivered, the parent process is the script
        try:
            with open(int(os.environ[ATTACHED]), "w") as pipe:
                pipe.write(json.dumps({**agent, "version": events_version()}) + "\n")
        except BrokenPipeError:
            script.ended.set()
        killed = worker_error("killed", "the script ended, but did not close its Meter")
        is_notebook = is_program(plan.job.measure.command)  # which need not close it
        return ScriptProcess(script, listener, None if is_notebook else killed)
    command = filled_command(plan.job)
    if is_program(command):
        command[0] = find_program(command[0]) or command[0]
    else:
        command.insert(0, find_interpreter(plan.job.device.python))
    environment = users_environment()
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(AGENT_PATH), environment.get("PYTHONPATH"))))
    environment[AGENT_VARIABLE] = json.dumps(agent)
    if not plan.job.measure.replay:
        process = subprocess.Popen(command, env=environment)
        pass_to(process)
        return ScriptProcess(process, listener)
    log = plan.record.folder / WORKER_LOG
    with log.open("wb") as output:  # its losses are not shown: they are no results
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    pass_to(process)
    return ScriptProcess(process, listener, log=log)


def check_trained(windows: "ScriptWindows", plan: Plan, reasons: Sequence[str]) -> None:
    """Raise RuntimeError if nothing of a script was measured, for these reasons, or not all of its GPUs."""
    if not plan.record.windows():
        hint = RAY_HINT if users_environment().get("RAY_ADDRESS") else LOOPS_HINT
        raise machine_error(f"no epoch of training was measured: {'; '.join(reasons)}", hint)
    for uuid in sorted(windows.gpus):
        if plan.gpus and not any(matches_uuid(uuid, gpu) for gpu in plan.gpus):
            raise machine_error(f"GPU-{uuid} trained, but {','.join(plan.gpus)} is metered", RANKS_HINT)
    ranks = windows.rank_count
    if plan.job.machine.root == "/" and len(plan.gpus) > ranks:
        raise machine_error(f"{ranks} ranks trained, but {','.join(plan.gpus)} is metered", RANKS_HINT)


@contextmanager
def passed_signals(*, repeated: bool) -> Iterator[tuple[Callable[[subprocess.Popen[bytes]], None], Sequence[int]]]:
    """Pass signals that would stop this process to each process for which the yielded function is called.

    A process also gets the signals that arrived before it started. If `repeated`, the first signal stops this process
    too, when the `with` block ends. The second yielded value has the signals so far.
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
            yield pass_to, received
    finally:
        if repeated and received:
            signal.raise_signal(received[0])


def is_in_foreground() -> bool:
    """Return whether this process is in the foreground of a terminal, whose keys signal all of its processes."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
