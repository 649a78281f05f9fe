"""The operators of one training step with their shapes, from which the controller counts FLOPs (`trace.operators`).

Torch's execution trace observer writes them: it is told of each operator, and has no part in its execution. A mode
such as that of `torch.utils.flop_counter` runs the operators itself, without the autocast that custom operators and
those of inference mode have otherwise, so that their results differ.

The observer has two defects, which would end the process. It reads the open calls of the thread in which a forward pass
was, also if that thread has none: so nothing is recorded if another thread may have made a part of a graph
(`is_alone`). And calls that it does not understand, on nested tensors, end calls around them: so some more are open.
"""

import _thread
import ctypes
import json
import os
import sys
import threading
import time
from typing import Any, Dict, List, Optional

import torch

from epochmeter.agent import device_marks
from epochmeter.agent.facts import current_gpu
from epochmeter.agent.frames import pass_on
from epochmeter.agent.iterators import PassProgress
from epochmeter.worker.device import cache_bytes
from epochmeter.worker.timeline import monotonic_ns

FILE = "operators-{}-{}.json"  # of a process and a step, next to the logs
ATTEMPTS = 8  # steps that are recorded until one is as it should be
MAX_TRAINING = 1000  # backward passes and optimizer steps in one step, after which its end is not waited for
ERROR = 2  # level of messages of torch's C++ libraries
STOP_S = 0.005  # time in which calls of the observer by other threads end, before it is deleted
OPEN_CALLS = 2000  # more than calls on nested tensors in a step that have other results
FEW_STEPS = "no three steps in a row were alike, as with too few steps, or numbers of batches per step that vary"
NO_OBSERVER = "torch {} has no execution trace observer with shapes, version 2.2 has"
NOT_FREE = "torch's execution trace observer is used by the script, or cannot write its file"
NO_STEP = "none of {} steps was like the others: another loop ran, or a model was compiled within it"
OTHER_THREADS = "another thread of the script has computed gradients, or was profiled"
THREAD = "epochmeter.thread"  # name of a range, which shows the number of the thread that trains
PROBE = "epochmeter.probe"  # likewise, of a new thread
FEWER_THREADS = {"OMP_DYNAMIC", "OMP_THREAD_LIMIT"}  # variables with which OpenMP may use fewer than torch asks for
PROCESS = os.getpid()  # that has imported this module
Facts = Dict[str, Any]


class OperatorTrace:
    """Records the operators of one step in a pass that trains: of the first step that is like the two before it.

    Args:
        folder: That of the logs.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._attempts = 0
        self._groups: List[int] = []  # numbers of batches that were requested for the last two times of training
        self._recorded: Optional[RecordedStep] = None
        self._lock = threading.Lock()

    def requested(self, progress: PassProgress, training: int) -> Optional[Facts]:
        """Note that a pass is asked for its next batch; return facts if that ends the recorded step, else None.

        `training` is the number of optimizer steps and backward passes of the thread so far.
        """
        if training > progress.training:
            self._groups = [*self._groups[-1:], progress.waiting]
            progress.waiting, progress.has_trained = 0, True
        progress.training = training
        recorded = self._recorded
        if recorded is None or recorded.thread != threading.get_ident():
            return None
        if recorded.progress is progress:
            return self._end(recorded, training)
        if recorded.is_loop(progress):
            self.discard()
        return None

    def delivered(self, progress: PassProgress, number: int, training: int) -> Optional[Facts]:
        """Note that a pass has delivered a batch, and begin to record if the step is like the two before it.

        Return facts if that is not possible, else None.
        """
        progress.waiting += 1
        is_alike = self._groups == 2 * [progress.waiting]
        trains = progress.has_trained or progress.length == progress.waiting
        if not (is_alike and trains) or (torch.cuda.is_initialized() and device_marks.is_capturing()):
            return None
        if torch._C._autograd._profiler_enabled():  # its profile would contain what the recorder calls
            return None
        with self._lock:
            if self._recorded is not None:
                return None
            if self._attempts == ATTEMPTS:
                return {"reason": NO_STEP.format(ATTEMPTS)}
            self._attempts += 1
            path = os.path.join(self._folder, FILE.format(os.getpid(), self._attempts))
            try:
                self._recorded = RecordedStep(Recorder(path), progress, number, training)
            except UnknownError as error:
                return {"reason": str(error)}
        return None

    def trained(self, training: int) -> None:
        """Note a training event, by the number of all of the thread: the recorded step may never end."""
        recorded = self._recorded
        if recorded is None or recorded.thread != threading.get_ident():
            return
        if training > recorded.training + MAX_TRAINING:
            self.discard()

    def ended(self, number: int, training: int) -> Optional[Facts]:
        """Note that the script has left a pass; return facts if that ends the recorded step, else None."""
        recorded = self._recorded
        if recorded is None or recorded.number != number:
            return None
        if recorded.thread != threading.get_ident():
            self.discard()
            return None
        return self._end(recorded, training)

    def discard(self) -> None:
        """End recording without a result."""
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            recorded.recorder.end()
            os.unlink(recorded.recorder.path)

    def close(self) -> Facts:
        """End recording at the script's end, and return why there is no result."""
        self.discard()
        return {"reason": FEW_STEPS}

    def forget(self) -> None:
        """End recording in a child process, which has the open file of its parent."""
        if self._recorded is not None:
            self._recorded.recorder.forget()
            self._recorded = None

    def _end(self, recorded: "RecordedStep", training: int) -> Optional[Facts]:
        """Return facts on the recorded step, if it trained and nothing was compiled; else discard it."""
        if training == recorded.training or compilations() != recorded.compilations:
            self.discard()
            return None
        recorded.recorder.end()
        self._recorded = None
        device = current_gpu() or torch.device("cpu")
        return {
            "file": os.path.basename(recorded.recorder.path), "pass": recorded.number, "begun_ns": recorded.begun_ns,
            "batches": recorded.batches, "threads": torch.get_num_threads(), "tf32": uses_tf32(),
            "cache_bytes": cache_bytes(device),
            "python": sys.executable, "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }  # fmt: skip


class RecordedStep:
    """A step that is being recorded: its pass, and what was known as it began."""

    def __init__(self, recorder: "Recorder", progress: PassProgress, number: int, training: int) -> None:
        self.recorder, self.progress, self.number, self.training = recorder, progress, number, training
        self.batches, self.begun_ns = progress.waiting, monotonic_ns()
        self.thread, self.compilations = threading.get_ident(), compilations()
        self._requests: Dict[int, int] = {}  # of other passes, by their identity

    def is_loop(self, progress: PassProgress) -> bool:
        """Note a request of another pass within the step; return whether that is a loop, such as an evaluation."""
        self._requests[id(progress)] = self._requests.get(id(progress), 0) + 1
        return self._requests[id(progress)] > 1


class UnknownError(Exception):
    """The operators cannot be recorded, with the reason."""


class Recorder:
    """Torch's observer, from its start to its end; meanwhile, warnings of torch's C++ libraries are not shown.

    The observer warns of its start and its end, and of tensors without a shape, which the script would not.

    Args:
        path: The file that it writes.

    Raises:
        UnknownError: This torch has no observer, or the script uses it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._observer: Any = None
        self._open: List[Any] = []
        self._level = log_level()
        self._shown = self._level.value
        self._level.value = max(self._shown, ERROR)
        try:
            if not is_alone(path):
                raise UnknownError(OTHER_THREADS)
            self._observer = new_observer(path)
            self._observer.start()
            mark(THREAD)
            self._open += [begin(THREAD) for _ in range(OPEN_CALLS)]
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Stop the observer, which completes its file."""
        try:
            if self._observer is not None:
                self._observer.stop()
                while self._open:
                    end(self._open.pop())
                time.sleep(STOP_S)
                self._observer.unregister_callback()
        finally:
            self._level.value = self._shown

    def forget(self) -> None:
        """Stop the observer without writing its file, which is that of another process."""
        self._observer.stop()
        self._level.value = self._shown
        kept.append((self._observer, self._open))


kept: List[object] = []  # observers, which would complete their files when they are deleted
probes = 0  # threads that this module has started


def is_alone(path: str) -> bool:
    """Return whether no other thread has made a part of a graph of autograd, or was observed; it writes a file.

    Torch gives numbers to such threads, the first one being 1. The backward pass of attention on a CPU computes in
    torch's own threads, which get numbers by that: then all of these get one, so that the others can be counted.
    """
    others, own = numbered_threads(path), torch.get_num_threads() - 1
    if others is not None and 0 < others <= own:
        number_own_threads()
        return numbered_threads(path) == own
    return others == 0


def numbered_threads(path: str) -> Optional[int]:
    """Return how many threads have numbers, besides this one and `probes`; None if this one is not the first.

    A new thread has the next number.
    """
    global probes
    probes += 1
    observer = new_observer(path)
    try:
        observer.start()
        mark(THREAD)
        ended = threading.Lock()
        ended.acquire()
        _thread.start_new_thread(mark, (PROBE, ended))  # a `Thread` would change the names of the script's threads
        ended.acquire()
    finally:
        observer.unregister_callback()
    with open(path) as file:
        entries = json.load(file)["nodes"]
    os.unlink(path)
    numbers = {entry["name"]: fact["value"] for entry in entries for fact in entry["attrs"] if fact["name"] == "tid"}
    return int(numbers[PROBE]) - 1 - probes if numbers[THREAD] == 1 else None


def number_own_threads() -> None:
    """Let all of torch's threads that compute for this one get a number.

    This calls the operator of the backward pass itself. A pass of autograd would be recorded as one of the script, and
    would call what the script has registered, such as hooks on saved tensors.

    Raises:
        UnknownError: That is not possible here.
    """
    counts = (getattr(torch._C, name, int) for name in ("_len_torch_dispatch_stack", "_len_torch_function_stack"))
    modes = sum(count() for count in counts)
    backward = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
    is_forked = os.getpid() != PROCESS  # OpenMP may wait forever there
    if modes or backward is None or is_forked or FEWER_THREADS & os.environ.keys() or torch.is_inference_mode_enabled():
        raise UnknownError(OTHER_THREADS)
    heads = 4 * torch.get_num_threads()  # each thread has some of them
    inputs = torch.ones(1, heads, 16, 16, dtype=torch.float32, device="cpu", requires_grad=True)
    with torch.no_grad():  # in this thread only: others make parts of a graph
        backward(inputs, inputs, inputs, inputs, inputs, inputs[..., 0].contiguous(), 0.0, False)


def mark(name: str, ended: "Optional[threading.Lock]" = None) -> None:
    """Show the observer a call with a name, then release a lock."""
    try:
        end(begin(name))
    finally:
        if ended is not None:
            ended.release()


def begin(name: str) -> Any:
    """Begin a call that the observer sees. Unlike `record_function`, it is no operator, which a mode would see."""
    autograd: Any = torch._C._autograd
    return autograd._record_function_with_args_enter(name)


def end(call: Any) -> None:
    """End a call that the observer sees."""
    autograd: Any = torch._C._autograd
    autograd._record_function_with_args_exit(call)


def new_observer(path: str) -> Any:
    """Return torch's observer, which will write a file; UnknownError if there is none."""
    kind = getattr(torch.profiler, "ExecutionTraceObserver", None)
    if kind is None or not hasattr(torch._C._autograd, "_record_function_with_args_enter"):
        raise UnknownError(NO_OBSERVER.format(torch.__version__))
    observer = kind()
    observer.register_callback(path)
    if not os.path.exists(path):
        observer._registered = False  # a process has one observer, which this object would remove when it is deleted
        raise UnknownError(NOT_FREE)
    return observer


def log_level() -> Any:
    """Return the level of messages that torch's C++ libraries show, as a variable; UnknownError if it has none."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(path), "FLAGS_caffe2_log_level")
    except (OSError, ValueError) as error:
        raise UnknownError("this build of torch has no level of messages: {}".format(error)) from error


def compilations() -> int:
    """Return a number that changes if `torch.compile` compiles something, whose operators are not executed."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return sum(sum(counts.values()) for counts in list(counters.values()))


def uses_tf32() -> Dict[str, Optional[bool]]:
    """Return whether matrix products and convolutions in fp32 are computed in tf32; None if that is not known."""
    if not torch.cuda.is_initialized() or torch.cuda.get_device_capability()[0] < 8:
        return {"products": False, "convolutions": False}
    found: Dict[str, Optional[bool]] = {}
    for name, read in (("products", "_get_cublas_allow_tf32"), ("convolutions", "_get_cudnn_allow_tf32")):
        try:
            found[name] = bool(getattr(torch._C, read)())
        except Exception as error:  # the script has set it by another function of torch, too
            pass_on(error)
            found[name] = None
    return found
