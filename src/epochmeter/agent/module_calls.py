"""Calls of modules: those of one class, and for a time those of all modules."""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Optional

from epochmeter.agent.frames import hidden, hide_frames
from epochmeter.agent.replaced import ReplacedMethod, Restore, replace

if TYPE_CHECKING:
    from typing import Protocol  # from Python 3.8 on

    class CallHooks(Protocol):
        """What records the calls."""

        is_passive: bool

        def is_idle(self) -> bool: ...

        def begin(self) -> Optional[Any]: ...

        def end(self, begun: Any) -> object: ...


class RecordedCall(ReplacedMethod):
    """The method `__call__` of a class of modules, which records its calls.

    Of the hooks, `begin` is called before each call, and `end` after it with the result of `begin`, unless that is
    None. While they are passive or idle, and accessed by the class, it is the original function: `torch.compile` and
    `torch.export` find nothing else.
    """

    def __init__(self, kind: type, hooks: "CallHooks") -> None:
        original: Any = kind.__call__
        super().__init__(original)
        own = vars(kind).get("__call__")
        self._kind, self._own, self._hooks = kind, own, hooks
        is_recorded = isinstance(own, RecordedCall)  # by another agent

        @hidden
        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            # What others replace in a parent class, such as torch.fx, has its effect.
            parent: Any = super(kind, module) if own is None else None
            begun = hooks.begin()
            try:
                if own is None:
                    return parent.__call__(*arguments, **keywords)
                if is_recorded:
                    return own.__get__(module, kind)(*arguments, **keywords)
                return own(module, *arguments, **keywords)
            except BaseException as error:
                hide_frames(error)
                raise
            finally:
                if begun is not None:
                    hooks.end(begun)

        self._call = call

    def __get__(self, module: object, kind: Optional[type] = None) -> Any:
        hooks = self._hooks
        if module is not None and not hooks.is_passive and not hooks.is_idle():
            return types.MethodType(self._call, module)
        if self._own is not None:
            return self._own.__get__(module, self._kind)
        inherited: Any = super(self._kind, kind if module is None else module)
        return inherited.__call__

    def is_of(self, hooks: "CallHooks") -> bool:
        """Return whether the calls are recorded for these hooks, also within those for others."""
        return self._hooks is hooks or (isinstance(self._own, RecordedCall) and self._own.is_of(hooks))


def class_of_compiled_modules() -> Optional[type]:
    """Return the class of the modules that `torch.compile` returns; None if the script has not used it."""
    return getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", None)


def hook_calls(kind: type, hooks: "CallHooks") -> Optional[Restore]:
    """Record the calls of a class's objects (`RecordedCall`); return a function that ends this.

    None if its calls cannot be recorded, or are so already. Each agent of this process, of several `Meter`, does it.
    """
    own = vars(kind).get("__call__", hook_calls)
    is_possible = not own.is_of(hooks) if isinstance(own, RecordedCall) else isinstance(own, types.FunctionType)
    try:
        return replace(kind, "__call__", RecordedCall(kind, hooks)) if is_possible else None
    except TypeError:  # its metaclass refuses it
        return None


def hook_modules(enter: Callable[[Any, Any], None], leave: Callable[[Any, Any, Any], None]) -> Restore:
    """Call `enter` before and `leave` after the forward pass of each module; return a function that ends this."""
    module = importlib.import_module("torch.nn.modules.module")
    handles = [module.register_module_forward_pre_hook(enter)]
    try:
        handles.append(module.register_module_forward_hook(leave, always_call=True))
    except TypeError:  # before torch 2.1, which does not call it after an error
        handles.append(module.register_module_forward_hook(leave))
    return lambda: [handle.remove() for handle in handles]
