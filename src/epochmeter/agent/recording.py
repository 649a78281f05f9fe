"""The recording of one process: logs of its threads, facts on it, and the connection to the controller.

Without a controller it is the same. It ends at the first error of the agent, which is reported once; the script
continues.
"""

import itertools
import os
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

import torch

from epochmeter.agent import device_marks
from epochmeter.agent.event_log import EventLog
from epochmeter.agent.facts import FactsFile, current_gpu, own_rank, process_facts, trained_gpu
from epochmeter.agent.frames import Suppressed, is_from_signal_handler
from epochmeter.agent.notices import notice
from epochmeter.agent.script_connection import ScriptConnection
from epochmeter.agent.thread_state import ThreadState
from epochmeter.shared.events import AGENT_VARIABLE, UNMEASURED, UNMEASURED_VARIABLE
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import Message, NotMeasured
from epochmeter.worker.connection import ControllerGoneError
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from typing import Protocol  # from Python 3.8 on

    from epochmeter.agent.brief_steps import BriefSteps
    from epochmeter.agent.iterators import PassProgress
    from epochmeter.agent.tracing import ScriptTrace

    class Details(Protocol):
        """Records details of a few steps besides their events (`StepDetails`)."""

        trace: "Optional[ScriptTrace]"

        def request(self, progress: "PassProgress") -> None: ...

        def deliver(self, progress: "PassProgress", number: int) -> None: ...

        def train(self, steps: int) -> None: ...

        def drop(self, number: int) -> None: ...

        def end_pass(self) -> None: ...

        def end(self) -> None: ...

        def discard(self) -> None: ...

        def forget(self) -> None: ...


END_LIMIT_S = 30.0  # in which the GPU ends its work
Result = TypeVar("Result")


class Recording:
    """Records events of this process, in files of a folder.

    Args:
        socket: Path of the controller's socket; None: there is no controller.
        folder: Folder of the logs.

    Attributes:
        is_on: Whether events are recorded.
        reason: Why it is off, or has no measurements to give.
        thread: State of the current thread.
        facts: Facts on the process and its objects.
        connection: To the controller; None before the first event.
        details: What is recorded of single steps besides events; None: nothing, or nothing more.
        folder: Folder of the logs.
    """

    connection: Optional[ScriptConnection] = None
    details: "Optional[Details]" = None
    brief: "BriefSteps"

    def __init__(self, socket: Optional[str], folder: str) -> None:
        self.is_on = True
        self.reason = ""
        self.folder = folder
        self._socket = socket

    def begin_process(self) -> None:
        """Begin to record a process; a child has logs of its own, and must not write to those of its parent."""
        self.thread = ThreadState()
        self.facts = FactsFile(self.folder)
        self._threads = itertools.count()
        self._device: Optional[torch.device] = None
        inherited, self.connection = self.connection, None
        if inherited is not None:
            inherited.release()  # else Python warns of it, in its development mode

    def new_log(self) -> EventLog:
        """Begin the log of the current thread, and return it; the first one connects the process."""
        self.connected()
        number = next(self._threads)
        log = self.thread.log = EventLog(self.folder, "{}-{}".format(os.getpid(), number))
        if number:
            self.brief.forbid()  # several threads may train
        return log

    def connected(self) -> ScriptConnection:
        """Return the connection of the process, which begins with its first log."""
        if self.connection is None:
            os.environ.pop(AGENT_VARIABLE, None)  # child processes of this one are not measured, but noted
            os.putenv(UNMEASURED_VARIABLE, os.path.join(self.folder, UNMEASURED))  # `os.environ` stays the script's
            rank, _, is_first = own_rank()
            self.details = self.details if is_first else None
            self.facts.write(process_facts())
            self.connection = ScriptConnection(self._socket, rank, is_first)
        return self.connection

    def send(self, message: Message) -> None:
        """Send a message to the controller, of a thread that may have recorded nothing so far."""
        if self.connection is None:
            self.new_log()
        self.connected().send(message)

    def is_lost(self) -> bool:
        """Return whether there is no controller any more."""
        return self.connection is not None and bool(self.connection.lost)

    def record(self, kind: int, thing: int = 0, begun_ns: int = 0, value: float = 0.0) -> None:
        """Record an event of a pass or a `Meter`, which may be the border of a window."""
        self.guarded(self._record, kind, thing, begun_ns, value)

    def _record(self, kind: int, thing: int, begun_ns: int, value: float) -> None:
        log = self.thread.log or self.new_log()
        marks = self.thread.marks
        log.write(kind, monotonic_ns(), begun_ns, value, thing)
        if marks is not None:
            marks.write_completed()
        self.connected().wake()

    def update_device(self, optimizer: Optional[torch.optim.Optimizer] = None) -> None:
        """Record timestamps of the script's GPU in this thread, and facts on it, once it is known which one it uses.

        That is the GPU of the first optimizer, which need not be the current one.
        """
        thread = self.thread
        if thread.marks is not None:
            return
        if self._device is None and optimizer is not None:
            self._device = trained_gpu(optimizer)
        device = self._device
        if device is None and torch.cuda.is_initialized() and (thread.steps or torch.cuda.device_count() == 1):
            device = current_gpu()
        if device is None or device_marks.is_capturing():
            return
        self._device = device
        self.facts.write(process_facts(device))
        thread.marks = device_marks.DeviceMarks(thread.log or self.new_log(), device)
        thread.sampling.use_device()

    def write_marks(self) -> None:
        """Write the timestamps of the GPU that are left in this thread, after waiting for it."""
        if self.thread.marks is not None:
            self.thread.marks.write_all(END_LIMIT_S)

    # Errors of the agent

    def guarded(self, act: Callable[..., Result], *arguments: object) -> Optional[Result]:
        """Call a function of the agent and return its result; if it fails, report that and record no more."""
        try:
            return act(*arguments) if self.is_on else None
        except BaseException as error:
            if self.is_of_script(error):
                raise
            return None

    def is_of_script(self, error: BaseException) -> bool:
        """Return whether the script must get an error: an interrupt, an exit, or an error of its own signal handler.

        All of them except exits end recording, since an event or a reply of the controller may be missing.
        """
        is_of_agent = isinstance(error, (Exception, ControllerGoneError))
        if is_of_agent or isinstance(error, KeyboardInterrupt):
            self._fail(error)
        return not is_of_agent or is_from_signal_handler(error)

    def _fail(self, error: BaseException) -> None:
        """Report an error of the agent on stderr and to the controller, and record no more."""
        self.reason = describe_error(error)
        if self.is_on:
            notice("measuring ended, the script continues: {}".format(self.reason))
            with Suppressed(Exception):
                self.facts.write({"kind": "problem", "text": self.reason})
        self.switch_off(NotMeasured(Problem(self.reason)))

    def switch_off(self, message: Message) -> None:
        """Record no more, and send the reason."""
        self.is_on = False
        with Suppressed(Exception):
            self.unhook()
        if self.connection is not None:
            with Suppressed(OSError, ControllerGoneError):  # the script may have closed all files
                self.connection.send(message)
                self.connection.close()

    def unhook(self) -> Any:
        """Remove the hooks that are installed while the script runs."""


def describe_error(error: BaseException) -> str:
    return "{}: {}".format(type(error).__name__, error)
