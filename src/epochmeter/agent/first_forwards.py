"""The first forward pass after a pass over data has begun: without it, a pass is no evaluation.

In scripts that use `torch.compile`, it is not looked for: the hook would be compiled with the modules.
"""

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Callable, Optional, Set

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from epochmeter.agent.phases import ForwardHooks
from epochmeter.agent.recording import Recording
from epochmeter.shared.events import FORWARD
from epochmeter.worker.timeline import monotonic_ns

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class FirstForwards:
    """Notes the first forward pass of each thread after a pass over data has begun.

    Args:
        recording: Where it is recorded.
        forwards: The hooks that record all forward passes.

    Attributes:
        model: Returns the module of the last noted forward pass, unless it was deleted.
    """

    def __init__(self, recording: Recording, forwards: ForwardHooks) -> None:
        self._recording, self._forwards = recording, forwards
        self.model: Callable[[], Optional[torch.nn.Module]] = lambda: None
        self._is_skipped = False  # whether `torch.compile` skips the functions of this package
        self.begin_process()

    def begin_process(self) -> None:
        """Forget the threads of the parent in a child process."""
        self._hook: Optional[RemovableHandle] = None
        self._awaiting: Set[int] = set()  # the threads that wait for a forward pass

    def begin_pass(self) -> bool:
        """Note the next forward pass of this thread; return whether that is possible."""
        if self._has_compiled():
            self._forwards.compile()
            return False
        self._recording.thread.awaits_forward = True
        self._awaiting.add(threading.get_ident())
        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._begun)
        return True

    def remove(self) -> None:
        """Remove the hook, as the first forward pass does, since it slows down each module."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.remove()

    def _begun(self, module: torch.nn.Module, inputs: object) -> None:
        if self._recording.is_on and self._recording.thread.awaits_forward:
            self._recording.guarded(self._note, module)

    def _note(self, module: torch.nn.Module) -> None:
        thread = self._recording.thread
        thread.awaits_forward = False
        self._awaiting.discard(threading.get_ident())
        self.model = weakref.ref(module)
        if not self._awaiting:
            self.remove()
        log = thread.log or self._recording.new_log()
        log.write(FORWARD, monotonic_ns())

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
