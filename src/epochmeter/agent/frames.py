"""Functions of the agent between the script and its libraries, which neither warnings nor tracebacks show.

And whether an error in one of them is the script's.
"""

import functools
import signal
import traceback
from types import FrameType, TracebackType
from typing import Any, Callable, List, Optional, Type, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = __name__.partition(".")[0]
FILE = "<frozen importlib._bootstrap> of {}: {{}}".format(PACKAGE)
"""File of hidden functions. `warnings` does not count functions of such files, and `torch.compile` skips them."""


def hidden(function: Function) -> Function:
    """Let libraries that a function calls attribute their warnings to the caller of the function (`stacklevel=2`).

    It has no effect before Python 3.8, whose versions of torch attribute them to themselves.
    """
    code: Any = function.__code__
    if hasattr(code, "replace"):
        function.__code__ = code.replace(co_filename=FILE.format(code.co_filename))
    return function


def visible_to_compiler(function: Function) -> Function:
    """Let `torch.compile` trace a function, which must do nothing then; it skips the files of this package."""
    code: Any = function.__code__
    if hasattr(code, "replace"):
        function.__code__ = code.replace(co_filename="<{}>".format(PACKAGE))
    return function


def hide_frames(error: BaseException) -> None:
    """Remove the functions of the agent from the begin of the traceback of an error that `raise` raises again.

    Before Python 3.11, `raise` restores the traceback, so that it shows the agent.
    """
    trace: Optional[TracebackType] = error.__traceback__
    while trace is not None and is_of_agent(trace.tb_frame):
        trace = trace.tb_next
    BaseException.with_traceback(error, trace)  # the class of an error may refuse new values, as a frozen dataclass


def is_of_agent(frame: FrameType) -> bool:
    """Return whether a frame is that of a function of the agent."""
    return str(frame.f_globals.get("__name__")).startswith(PACKAGE + ".")


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether an exception comes from the script's own handler of a signal that arrived in the agent's code."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if all(map(is_of_agent, frames)):
        return False  # as of errors that occur in each step, while the handlers take longer to find
    handlers: List[Any] = list(filter(callable, map(signal.getsignal, range(1, signal.NSIG))))
    handlers += [handler.func for handler in handlers if isinstance(handler, functools.partial)]
    functions = [*handlers, *(type(handler).__call__ for handler in handlers)]
    codes = {getattr(function, "__code__", None) for function in functions}
    return any(frame.f_code in codes for frame in frames)


def pass_on(error: BaseException) -> None:
    """Raise an error again that comes from the script's own signal handler, such as one that limits a time."""
    if is_from_signal_handler(error):
        raise error


class Suppressed:
    """Suppresses errors of these classes in a `with` block, except those of the script's own signal handlers."""

    def __init__(self, *kinds: Type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> bool:
        return isinstance(error, self._kinds) and not is_from_signal_handler(error)
