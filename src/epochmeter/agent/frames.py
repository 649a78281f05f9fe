"""Functions of the agent between the script and its libraries, which neither warnings nor tracebacks show."""

from types import TracebackType
from typing import Any, Callable, Optional, TypeVar

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
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(PACKAGE + "."):
        trace = trace.tb_next
    error.__traceback__ = trace
