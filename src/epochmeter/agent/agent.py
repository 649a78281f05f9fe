"""The agent in a script's process: it records what happens, and decides nothing.

The controller derives epochs and evaluations from the events (package `segmentation`). The agent draws no random
numbers, changes no batch, and waits for the controller only if the page cache is prepared before each pass, or if a
`Meter` is asked for a result. Without a controller it records as before. If it fails, it reports that once and records
no more; the script continues.
"""

import contextlib
import functools
import itertools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Set, Tuple, TypeVar, Union

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import data

from epochmeter.agent import device_marks
from epochmeter.agent.batch_timer import BatchTimer
from epochmeter.agent.event_log import EventLog
from epochmeter.agent.facts import FactsFile, current_gpu, own_rank, process_facts, trained_gpu
from epochmeter.agent.frames import hidden
from epochmeter.agent.iterators import PassProgress, RecordedIterator, is_from_signal_handler
from epochmeter.agent.loader_class import LoaderClass
from epochmeter.agent.loader_workers import StandIn, stand_ins
from epochmeter.agent.operators import Facts, OperatorTrace
from epochmeter.agent.phases import NOT_KNOWN, Begun, ForwardHooks
from epochmeter.agent.replay import Replay
from epochmeter.agent.samples import UNKNOWN, BatchSizes, batch_count, sample_counter
from epochmeter.agent.script_connection import ScriptConnection
from epochmeter.agent.thread_state import ThreadState
from epochmeter.agent.tracing import ScriptTrace
from epochmeter.agent.weak_values import WeakValues
from epochmeter.shared import events
from epochmeter.shared.problem import Problem
from epochmeter.shared.protocol import (
    Asked,
    Finished,
    Loaded,
    Message,
    NotMeasured,
    NotReplayed,
    PassOpening,
    RankFailed,
    Recorded,
    Traced,
    TraceFailed,
)
from epochmeter.shared.types import Document
from epochmeter.worker.connection import ControllerGoneError
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

END_LIMIT_S = 30.0  # in which the GPU ends its work
FIRST_STEPS = 4  # within which, or before a pass, a script that uses a GPU has initialized it
MakeIterator = Callable[[Any], Iterator[Any]]
Result = TypeVar("Result")


class Agent:
    """Records the training in this process, in files of the folder `logs`.

    Args:
        socket: Path of the controller's socket; None: there is no controller.
        logs: Folder of the logs.
        folder: The run folder, for the profiler's trace.
        prepares_passes: Whether the controller prepares the page cache before each pass.
        trace: Further arguments of `ScriptTrace`; None: no trace.
        loader: Class, `MODULE:CLASS`, whose passes are recorded besides those of DataLoaders; None: there is none.
        replay: Number of batches after which a pass of unknown length counts as endless, if the loaders are replayed.
        counts: Whether the operators of one step are recorded.
    """

    def __init__(
        self,
        socket: Optional[str],
        logs: str,
        folder: str,
        prepares_passes: bool = False,
        trace: Optional[Document] = None,
        loader: Optional[str] = None,
        replay: Optional[int] = None,
        counts: bool = False,
    ) -> None:
        self.is_on = True
        self.reason = ""  # why it is off, or has no measurements to give
        self.trace = ScriptTrace(folder, **trace) if trace else None
        self.operators: Optional[OperatorTrace] = None
        self.loader_class = LoaderClass(loader)
        self.forwards = ForwardHooks(self)
        self._replay = None
        if replay is not None:
            self._replay = Replay(replay, self._steps, self._note_loaded, self._note_not_replayed, self._is_lost)
        self._socket, self._folder, self._prepares_passes, self._counts = socket, logs, prepares_passes, counts
        self._model: Callable[[], Optional[torch.nn.Module]] = lambda: None
        """Returns the module of the last noted forward pass, unless it was deleted."""
        self._is_skipped = False  # whether `torch.compile` skips the functions of this package
        self._begin_process()
        if hasattr(os, "register_at_fork"):
            begin = weakref.WeakMethod(self._begin_process)
            os.register_at_fork(after_in_child=lambda: (begin() or int)())

    def _begin_process(self) -> None:
        """Begin to record a process; a child has logs of its own, and must not write to those of its parent."""
        self.thread = ThreadState()
        self._threads = itertools.count()
        self._facts = FactsFile(self._folder)
        self._device: Optional[torch.device] = None
        self._connection: Optional[ScriptConnection] = None
        self._sizes: WeakValues[BatchSizes] = WeakValues()  # of loaders
        if self.operators is not None:
            self.operators.forget()
        self.operators = OperatorTrace(self._folder) if self._counts else None
        self._forward_hook: Optional[RemovableHandle] = None
        self._awaiting: Set[int] = set()  # the threads that wait for a forward pass

    # Passes over data

    @hidden
    def iterate(
        self, loader: Any, make_iterator: MakeIterator, name: str = "", is_explicit: bool = False
    ) -> Iterator[Any]:
        """Return an iterator over a loader that is recorded, unless a recorded iterator makes or uses it."""
        thread = self.thread
        if not self.is_on or thread.is_fetching or data.get_worker_info() is not None:
            return make_iterator(loader)
        if self._prepares_passes:
            self.guarded(self._await_preparation)
        called_ns = monotonic_ns()
        thread.is_fetching = True
        try:
            iterator = self._replay.iterate_other(loader, make_iterator) if self._replay else make_iterator(loader)
        finally:
            thread.is_fetching = False
        begun = self.guarded(self._begin_pass, loader, called_ns, name, is_explicit)
        return iterator if begun is None else RecordedIterator(self, iterator, *begun)

    @hidden
    def make_torch_iterator(self, loader: Any, make_iterator: MakeIterator) -> Iterator[Any]:
        """Return torch's own iterator over a DataLoader, which notes the sizes of its batches and times them.

        In a replayed run, it is one that replays the DataLoader.
        """
        if self._replay is not None and self.is_on:
            return self._replay.iterate_torch(loader, functools.partial(self._note_sizes, make_iterator))
        return self._note_sizes(make_iterator, loader)

    @hidden
    def _note_sizes(self, make_iterator: MakeIterator, loader: Any) -> Iterator[Any]:
        thread = self.thread
        earlier = thread.sizes, thread.parts
        thread.sizes, thread.parts = self._sizes_of(loader), self._timed_parts(loader)
        try:
            return make_iterator(loader)
        finally:
            thread.sizes, thread.parts = earlier

    def _timed_parts(self, loader: Any) -> Dict[str, StandIn]:
        """Return the timed parts of a loader; nothing if it is not measured, or of a kind that cannot be timed."""
        if not self.is_on or data.get_worker_info() is not None:
            return {}
        try:
            timer = BatchTimer(self, self._facts.loader_number(loader), self._folder, os.getpid())
            return stand_ins(loader, timer)
        except Exception as error:  # a class of the script
            self.guarded(self._facts.write, {"kind": "untimed", "text": describe_error(error)})
            return {}

    def _sizes_of(self, loader: object) -> BatchSizes:
        """Return the sizes of a loader's batches, which are noted from its first pass on."""
        sizes = self._sizes.get(loader)
        if sizes is None:
            sizes = BatchSizes()
            self._sizes.set(loader, sizes)
        return sizes

    def repeat(self, loader: object) -> None:
        """Record that a pass of a subclass of DataLoader begins a pass of its base class."""
        self.record(events.REPEATED, self._facts.loader_number(loader))

    def record(self, kind: int, thing: int = 0, begun_ns: int = 0, value: float = 0.0) -> None:
        """Record an event of a pass or a `Meter`, which may be the border of a window."""
        self.guarded(self._record, kind, thing, begun_ns, value)

    # Training

    def optimizer_begun(self, optimizer: torch.optim.Optimizer, arguments: object, keywords: object) -> None:
        """Note when a step of an optimizer of torch begins."""
        if self.is_on:
            self.thread.step_begins.append((id(optimizer), self.phase_begun()))

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer, arguments: object, keywords: object) -> None:
        """Record a step of an optimizer of torch, which has ended."""
        if not self.is_on:
            return
        try:
            if self.thread.steps < FIRST_STEPS:
                self._update_device(optimizer)
            try:
                rate = optimizer.param_groups[0].get("lr")
            except Exception:  # a class of the script
                rate = None
            self._note_training(
                events.STEP,
                self._step_begun(optimizer),
                self._facts.optimizer_number(optimizer),
                rate if type(rate) is float else as_float(rate),
            )
        except BaseException as error:
            if self.is_of_script(error):
                raise

    def _step_begun(self, optimizer: object) -> Begun:
        """Return when the last step of an optimizer that has not ended began; steps within it have failed."""
        begins = self.thread.step_begins
        while begins:
            key, begun = begins.pop()
            if key == id(optimizer):
                return begun
        return NOT_KNOWN

    def backward_ended(self, begun: Begun = NOT_KNOWN) -> None:
        """Record a backward pass, which has ended."""
        if not self.is_on:
            return
        try:
            if self.thread.steps < FIRST_STEPS:
                self._update_device()
            self._note_training(events.BACKWARD, begun, 0, UNKNOWN)
        except BaseException as error:
            if self.is_of_script(error):
                raise

    def phase_begun(self) -> Begun:
        """Return the begin of a forward pass, a backward pass or an optimizer step, which is now."""
        if not self.is_on:
            return NOT_KNOWN
        try:
            marks = self.thread.marks
            mark = None if marks is None else marks.record()
            return monotonic_ns(), mark
        except BaseException as error:
            if self.is_of_script(error):
                raise
            return NOT_KNOWN

    def phase_ended(self, kind: int, begun: Begun, flags: int = 0) -> None:
        """Record the end of a part of a step that is no training step, in a thread that reads data or trains."""
        log = self.thread.log
        if not self.is_on or log is None:
            return
        try:
            self._write_phase(log, kind, begun, 0, 0.0, flags)
        except BaseException as error:
            if self.is_of_script(error):
                raise

    def compiling(self) -> None:
        """Note that the script begins or ends a call of `torch.compile`."""
        self.guarded(self._remove_forward_hook)
        self.guarded(self.forwards.compile)

    def forward_begun(self, module: torch.nn.Module, inputs: object) -> None:
        """Record the first forward pass of a thread since its last pass over data has begun."""
        if self.is_on and self.thread.awaits_forward:
            self.guarded(self._note_forward, module)

    def collected(self, begun_ns: int) -> None:
        """Record that the garbage collector has run."""
        self._note_work(events.COLLECTED, begun_ns)

    def saved(self, begun_ns: int) -> None:
        """Record that something was saved."""
        self._note_work(events.SAVED, begun_ns)

    def note_facts(self, facts: Facts) -> None:
        """Write facts on this process."""
        self.guarded(self._facts.write, facts)

    # A `Meter`

    def measurement(self, name: str) -> Optional[Recorded]:
        """Return the controller's `Recorded` of the last window of a name; None if there is none so far."""
        return self.guarded(self._ask, name)

    def open_window(self, name: str) -> None:
        """Record the begin of a window of the script's own."""
        self.record(events.OPENED, self._facts.name_number(name))

    def close_window(self, name: str) -> None:
        """Record the end of a window of the script's own."""
        self.record(events.CLOSED, self._facts.name_number(name))

    def end_window(self) -> None:
        """Record that the open pass over data ends now."""
        self.record(events.CLOSED)

    def expect_epochs(self, count: Optional[int]) -> None:
        """Record how many epochs follow; None: it is not known."""
        self.record(events.EXPECTED, value=UNKNOWN if count is None else float(count))

    # The end

    def end(self, error: Optional[BaseException] = None) -> None:
        """End recording at the script's end; `error` ended it, if given."""
        if not self.is_on or self._connection is None:
            return
        is_interactive = hasattr(sys, "ps1") or "IPython" in sys.modules  # it continues after an exception
        error = error or (None if is_interactive else getattr(sys, "last_value", None))
        if self.operators is not None:
            self._count(self.operators.close)
        self.guarded(self._write_marks)
        self.guarded(self._write_loader_facts)
        self.guarded(self._facts.write, {"kind": "end", "error": describe_error(error) if error else ""})
        self._switch_off(RankFailed(Problem(describe_error(error)), 0) if error else Finished())

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

    def new_log(self) -> EventLog:
        """Begin the log of the current thread, and return it; the first one connects the process."""
        self._connected()
        log = self.thread.log = EventLog(self._folder, "{}-{}".format(os.getpid(), next(self._threads)))
        return log

    def _connected(self) -> ScriptConnection:
        """Return the connection of the process, which begins with its first log."""
        if self._connection is None:
            os.environ.pop("EPOCHMETER_AGENT", None)  # child processes of this one are not measured
            rank, _, is_first = own_rank()
            self.trace, self.operators = (self.trace, self.operators) if is_first else (None, None)
            self._facts.write(process_facts())
            self._connection = ScriptConnection(self._socket, rank, is_first)
        return self._connection

    def trace_step(self, progress: PassProgress) -> None:
        """Trace the next step of a pass, if it is one of the steps to trace; only the first rank traces."""
        self.guarded(self._trace_step, progress)

    def _trace_step(self, progress: PassProgress) -> None:
        if self.trace is not None:
            self._report_trace(self.trace.step(progress, self.thread.steps, self._model()))

    def request_counted(self, progress: PassProgress) -> None:
        """Note a request of a batch, which may end the step whose operators are recorded."""
        if self.operators is not None:
            self._count(self.operators.requested, progress, self.thread.steps)

    def deliver_counted(self, progress: PassProgress, number: int) -> None:
        """Note the arrival of a batch of the pass with a number, which may begin that step."""
        if self.operators is not None:
            self._count(self.operators.delivered, progress, number, self.thread.steps)

    def _count(self, act: Callable[..., Optional[Facts]], *arguments: object) -> None:
        """Call a method of the record of operators, and write the facts that it returns; an error ends that record."""
        self.guarded(self._write_counted, act, *arguments)

    def _write_counted(self, act: Callable[..., Optional[Facts]], *arguments: object) -> None:
        try:
            facts = act(*arguments)
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            facts = {"reason": describe_error(error)}
        if facts is None:
            return
        self.operators = None
        number, log = self._facts.new_number(), self.thread.log or self.new_log()
        self._facts.write(dict(facts, kind="operators", object=number))
        if "file" in facts:
            log.write(events.COUNTED, monotonic_ns(), facts["begun_ns"], 0.0, facts["pass"], number)

    def _begin_pass(
        self, loader: Any, called_ns: int, name: str, is_explicit: bool
    ) -> Tuple[int, Optional[int], Optional[Callable[[Any], float]]]:
        """Record the begin of a pass; return further arguments of `RecordedIterator`."""
        now_ns, thread, length = monotonic_ns(), self.thread, batch_count(loader)
        log = thread.log or self.new_log()
        self._update_device()
        self.loader_class.note_around()
        flags = events.HAS_GRADIENTS if torch.is_grad_enabled() else 0
        flags |= events.IS_EXPLICIT if is_explicit else 0
        if self._has_compiled():
            flags |= events.HIDES_FORWARDS  # the hook would be compiled with the module
            self.forwards.compile()
        else:
            self._await_forward()
        number, name_number = self._facts.new_number(), self._facts.name_number(name) if name else 0
        self.forwards.begin_pass()
        batches = UNKNOWN if length is None else float(length)
        loader_number = self._facts.loader_number(loader)
        log.write(events.PASS, now_ns, called_ns, batches, number, loader_number, 0, name_number, flags)
        self._connected().wake()
        return number, length, sample_counter(loader, self._sizes_of(loader))

    def _record(self, kind: int, thing: int, begun_ns: int = 0, value: float = 0.0) -> None:
        log = self.thread.log or self.new_log()
        marks = self.thread.marks
        if self.operators is not None and kind == events.DROPPED:
            self._write_counted(self.operators.ended, thing, self.thread.steps)
        log.write(kind, monotonic_ns(), begun_ns, value, thing)
        if marks is not None:
            marks.write_completed()
        self._connected().wake()
        if kind in (events.END, events.DROPPED):
            self.forwards.end_pass()
            if self.trace is not None:
                self._report_trace(self.trace.close())

    def _note_training(self, kind: int, begun: Begun, thing: int, value: float) -> None:
        thread = self.thread
        thread.steps += 1
        if self.operators is not None:
            self.operators.trained(thread.steps)
        self._write_phase(thread.log or self.new_log(), kind, begun, thing, value)

    def _write_phase(self, log: EventLog, kind: int, begun: Begun, thing: int, value: float, flags: int = 0) -> None:
        marks = self.thread.marks
        mark = None if marks is None else marks.record()
        now_ns, (begun_ns, begun_mark) = monotonic_ns(), begun
        if marks is None or mark is None:
            log.write(kind, now_ns, begun_ns, value, thing, 0, 0, 0, flags)
        else:
            flags |= events.HAS_DEVICE_TIME if begun_mark is None else events.HAS_DEVICE_TIME | events.HAS_BEGIN_TIME
            log.write(kind, now_ns, begun_ns, value, thing, begun_mark or 0, mark, 0, flags)
            marks.collect(now_ns)

    def _note_work(self, kind: int, begun_ns: int) -> None:
        if self.is_on and self.thread.log is not None:  # else nothing was trained in this thread so far
            self.guarded(self.thread.log.write, kind, monotonic_ns(), begun_ns)

    def _note_forward(self, module: torch.nn.Module) -> None:
        thread = self.thread
        thread.awaits_forward = False
        self._awaiting.discard(threading.get_ident())
        self._model = weakref.ref(module)
        if not self._awaiting:
            self._remove_forward_hook()
        log = thread.log or self.new_log()
        log.write(events.FORWARD, monotonic_ns())

    def _await_forward(self) -> None:
        """Note the thread's next forward pass; the hook is removed by it, since it slows down each module."""
        self.thread.awaits_forward = True
        self._awaiting.add(threading.get_ident())
        if self._forward_hook is None:
            self._forward_hook = register_module_forward_pre_hook(self.forward_begun)

    def _remove_forward_hook(self) -> None:
        hook, self._forward_hook = self._forward_hook, None
        if hook is not None:
            hook.remove()

    def _has_compiled(self) -> bool:
        """Return whether the script has used `torch.compile`; if so, let it skip the functions of this package."""
        # The backends by `id`; the backend of code that torch must not compile is `False`.
        backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
        if not self._is_skipped and any(backends.values()):
            for name in ("trace_rules", "skipfiles"):  # the second before torch 2.3
                add = getattr(sys.modules.get("torch._dynamo." + name), "add", None)
                if add is not None:
                    add(__name__.partition(".")[0])
            self._is_skipped = True
        return self._is_skipped

    def _update_device(self, optimizer: Optional[torch.optim.Optimizer] = None) -> None:
        """Record timestamps of the script's GPU in this thread, and facts on it, once it is known which one it uses.

        That is the GPU of the first optimizer, which need not be the current one.
        """
        thread = self.thread
        if thread.marks is not None:
            return
        if self._device is None and optimizer is not None:
            self._device = trained_gpu(optimizer)
        device = self._device or (current_gpu() if torch.cuda.device_count() == 1 or thread.steps else None)
        if device is None or device_marks.is_capturing():
            return
        self._device = device
        self._facts.write(process_facts(device))
        thread.marks = device_marks.DeviceMarks(thread.log or self.new_log(), device)

    def _await_preparation(self) -> None:
        if self._connection is None:
            self.new_log()
        self._connected().request(PassOpening())

    def _ask(self, name: str) -> Optional[Recorded]:
        if self._connection is None:
            return None
        if not self._connection.lost:
            self._write_marks()
        reply = self._connection.request(Asked(name, str(os.getpid())))
        self.reason = self._connection.lost
        return reply if isinstance(reply, Recorded) else None

    def _write_marks(self) -> None:
        """Write the timestamps of the GPU that are left in this thread, after waiting for it."""
        if self.thread.marks is not None:
            self.thread.marks.write_all(END_LIMIT_S)

    def _write_loader_facts(self) -> None:
        """Write which loaders were not measured, for a script that trains without a measured pass."""
        loaders = self.loader_class
        facts = {"problem": loaders.problem, "unmeasured": loaders.unmeasured(), "around": sorted(loaders.around)}
        if any(facts.values()):
            self._facts.write(dict(facts, kind="loaders"))

    def _steps(self) -> int:
        return self.thread.steps

    def _note_loaded(self) -> None:
        """Report that a loader of a replayed run delivers batches itself."""
        self.guarded(self._send, Loaded(monotonic_ns()))

    def _note_not_replayed(self, problem: Problem) -> None:
        self.guarded(self._send, NotReplayed(problem))

    def _send(self, message: Message) -> None:
        if self._connection is None:
            self.new_log()
        self._connected().send(message)

    def _is_lost(self) -> bool:
        return self._connection is not None and bool(self._connection.lost)

    def _report_trace(self, message: Union[Traced, TraceFailed, None]) -> None:
        """Send the result of the trace, if there is one, and end tracing."""
        if message is not None and self._connection is not None:
            self.trace = None
            self._connection.send(message)

    def _fail(self, error: BaseException) -> None:
        """Report an error of the agent on stderr and to the controller, and record no more."""
        self.reason = describe_error(error)
        if self.is_on:
            with contextlib.suppress(Exception):
                print("epochmeter: measuring ended, the script continues: {}".format(self.reason), file=sys.stderr)
            with contextlib.suppress(Exception):
                self._facts.write({"kind": "problem", "text": self.reason})
        self._switch_off(NotMeasured(Problem(self.reason)))

    def _switch_off(self, message: Message) -> None:
        self.is_on = False
        with contextlib.suppress(Exception):
            self._remove_forward_hook()
            self.forwards.remove()
            if self.operators is not None:
                self.operators.discard()
            if self.trace is not None:
                self._report_trace(self.trace.close())
        if self._connection is not None:
            with contextlib.suppress(OSError, ControllerGoneError):  # the script may have closed all files
                self._connection.send(message)
                self._connection.close()


def as_float(rate: Any) -> float:
    """Return a learning rate as a number; NaN if it is absent, or on a GPU, which would have to be waited for."""
    is_on_cpu = isinstance(rate, torch.Tensor) and rate.device.type == "cpu"
    return float(rate) if is_on_cpu or isinstance(rate, int) else UNKNOWN


def describe_error(error: BaseException) -> str:
    return "{}: {}".format(type(error).__name__, error)
