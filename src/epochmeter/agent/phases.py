"""Forward passes of a script's outermost modules: the begin and the end of each, on the host and on the device.

A global hook slows down each module, and a hook of a module is visible in it. So `__call__` of the outermost modules'
classes is replaced. Global hooks find these classes: during the first calls of each pass over data, and during a few
calls from time to time; the traceback of an error in one of these shows how torch calls hooks. Calls of modules without
parameters, such as loss functions, are no forward passes.
"""

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

from epochmeter.agent.module_calls import class_of_compiled_modules, hook_calls, hook_modules
from epochmeter.agent.replaced import Restore
from epochmeter.agent.thread_state import ThreadState
from epochmeter.shared.events import FORWARD_ENDED, WAS_UNSEEN
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from typing import Protocol  # from Python 3.8 on

    import torch

    class Recorder(Protocol):
        """What the hooks need of the recording."""

        thread: ThreadState
        is_on: bool

        def guarded(self, act: Callable[..., Any], *arguments: object) -> Any: ...

    class Events(Protocol):
        """What the hooks need of the events of training."""

        def phase_begun(self) -> "Begun": ...

        def phase_ended(self, kind: int, begun: "Begun", flags: int) -> None: ...


FIRST_CALLS, PASS_CALLS = 16, 1  # outermost calls that are watched from the begin of the first, and of a later pass on
WATCH_EVERY, LATER_CALLS = 97, 2  # recorded calls after which some are watched again, and how many

Begun = Tuple[int, Optional[int]]
"""When a forward pass, a backward pass or an optimizer step began, and the number of the GPU's timestamp, if any."""
NOT_KNOWN: Begun = (0, None)


class ForwardHooks:
    """Records the forward passes of outermost modules, in the logs of threads with a pass over data.

    With `torch.compile`, only compiled modules are recorded, since hooks would be compiled with the others. In steps
    whose phases are not timed, nothing is recorded.

    Attributes:
        is_passive: Whether nothing is recorded now, in any thread.
    """

    def __init__(self, recorder: "Recorder", training: "Events") -> None:
        self._recorder, self._training = recorder, training
        self._replaced: List[Restore] = []  # restore the classes
        self._end_watch: Optional[Restore] = None
        self._to_watch = FIRST_CALLS  # remaining calls
        self._recorded = 0
        self._has_call = self._has_seen_all = False  # whether there was a call in the last pass, and all were watched
        self.is_passive = False
        self._is_of_compiled = False
        self._compiled: Optional[type] = None  # the class of compiled modules

    def begin_pass(self) -> None:
        """Watch the first calls of a pass over data."""
        self._recorder.thread.is_forwarding = False
        self._has_call, self._has_seen_all = False, True
        self._watch(max(self._to_watch, PASS_CALLS))

    def end_pass(self) -> None:
        """Watch no more after a pass, unless the script has only read its batches so far."""
        if self._has_call:
            self._stop_watching()

    def remove(self) -> None:
        """Remove all hooks."""
        self._stop_watching()
        while self._replaced:
            self._replaced.pop()()

    def compile(self) -> None:
        """Record only compiled modules from now on."""
        if not self._is_of_compiled:
            self.remove()
            self._is_of_compiled = True
        if self._compiled is None:
            self._compiled = class_of_compiled_modules()
            if self._compiled is not None:
                self._add(self._compiled)

    @property
    def is_watching(self) -> bool:
        """Whether global hooks watch the calls of modules now."""
        return self._end_watch is not None

    def is_idle(self) -> bool:
        """Return whether calls are neither timed nor watched now."""
        return self._recorder.thread.sampling.untimed != 0 and self._end_watch is None

    def begin(self) -> Optional[Begun]:
        """Return the begin of a forward pass; None if it is none of the script's outermost ones."""
        # Runs in every step, as `end`: each call of a function takes about a microsecond with cold CPU caches.
        recorder = self._recorder
        thread = recorder.thread
        if thread.is_forwarding or thread.is_fetching or thread.log is None or not recorder.is_on:
            return None
        if thread.marks is None:
            thread.is_forwarding = True
            return monotonic_ns(), None
        begun = self._training.phase_begun()
        thread.is_forwarding = True
        return begun

    def end(self, begun: Begun) -> None:
        """Record a forward pass, which has ended."""
        self._recorder.thread.is_forwarding = False
        self._recorded += 1
        if self._end_watch is not None:
            self._count()
        elif self._recorded % WATCH_EVERY == 0:
            self._watch(LATER_CALLS)
        # Last, so that what this takes is no part of the loss.
        self._training.phase_ended(FORWARD_ENDED, begun, 0)

    def _add(self, kind: type) -> None:
        restore = hook_calls(kind, self)
        if restore is not None:
            self._replaced.append(restore)

    # Classes that are not known

    def _watch(self, calls: int) -> None:
        if self._is_of_compiled:
            return
        self._to_watch = calls
        if self._end_watch is None:
            self._end_watch = hook_modules(self._entered, self._left)

    def _count(self) -> None:
        self._has_call = True
        self._to_watch -= 1
        if self._to_watch <= 0:
            self._has_seen_all = False
            self._stop_watching()

    def _stop_watching(self) -> None:
        end_watch, self._end_watch = self._end_watch, None
        if end_watch is not None:
            end_watch()

    def _entered(self, module: "torch.nn.Module", inputs: object) -> None:
        self._recorder.guarded(self._enter, module)

    def _left(self, module: "torch.nn.Module", inputs: object, outputs: object) -> None:
        self._recorder.guarded(self._leave, module)

    def _enter(self, module: "torch.nn.Module") -> None:
        thread = self._recorder.thread
        if thread.is_forwarding or thread.is_fetching or thread.log is None:
            return
        if has_parameters(module):
            thread.watched = module, self.begin()
        else:
            self._count()

    def _leave(self, module: "torch.nn.Module") -> None:
        thread = self._recorder.thread
        if thread.watched is None or thread.watched[0] is not module:
            return
        (_, begun), thread.watched = thread.watched, None
        if begun is not None:
            thread.is_forwarding = False
            self._training.phase_ended(FORWARD_ENDED, begun, 0 if self._has_seen_all else WAS_UNSEEN)
        self._add(type(module))
        self._count()


def has_parameters(module: "torch.nn.Module") -> bool:
    """Return whether a module, or one within it, has parameters.

    It calls no method of theirs: that of a script may return anything, or have an effect.
    """
    found, seen = [module], {id(module)}  # a module may be within several
    for each in found:
        if any(parameter is not None for parameter in each._parameters.values()):
            return True
        new = [inner for inner in each._modules.values() if inner is not None and id(inner) not in seen]
        seen.update(map(id, new))
        found += new
    return False
