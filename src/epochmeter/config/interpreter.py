"""The Python and the environment of a command, before it imports any library; whether this Python can run it.

This module and the commands must be readable by Python 3.6, the default `python3` of older Jetsons.
"""

import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Optional, Type

if TYPE_CHECKING:
    from types import TracebackType

from epochmeter.shared import tool
from epochmeter.shared.problem import Problem, format_problem

ENVIRONMENT = dict(os.environ)
"""The variables that the user has set. This command and its libraries set more, which no script must get."""
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def end_quietly(kind: Type[BaseException], error: BaseException, trace: "Optional[TracebackType]") -> None:
    """End at Ctrl-C by SIGINT, as shells expect, and without a traceback; installed as `sys.excepthook`."""
    if issubclass(kind, KeyboardInterrupt):
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        except KeyboardInterrupt:  # a second Ctrl-C
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = end_quietly


def missing_folder() -> str:
    """Return the error if the current folder cannot be used, such as a deleted one, with a hint; empty if it can."""
    try:
        os.getcwd()
    except OSError as error:
        problem = f"the current folder cannot be used: {error.strerror}"
        hint = "change to another folder, `cd ~`, and run the command again"
        return format_problem(Problem(problem, hint), "error")
    return ""


def missing_requirements() -> str:
    """Return the error if this Python cannot run the command, with a hint; empty if it can."""
    missing = [] if sys.version_info < tool.MIN_PYTHON else tool.missing_packages()
    if sys.version_info < tool.MIN_PYTHON:
        problem = "is Python {}.{}; epochmeter needs {}.{} or newer".format(*sys.version_info[:2], *tool.MIN_PYTHON)
    elif missing:
        problem = "lacks {}".format(", ".join(missing))
    else:
        return ""
    hint = "install epochmeter again for a newer Python"
    if tool.IS_INSTALLED and missing:
        hint = "install the packages of the commands: `{}`".format(tool.tool_command())
    if not tool.IS_INSTALLED:
        make = "make setup" if os.getcwd() == ROOT else f"make -C {shlex.quote(ROOT)} setup"
        command = " ".join(map(shlex.quote, [os.path.relpath(os.path.join(ROOT, ".venv/bin/python")), *sys.argv]))
        hint = f"run `{make}` once, then `{command}`"
    return format_problem(Problem(f"`{sys.executable}` {problem}", hint), "error")


def active_environment() -> Optional[str]:
    """Return the folder of the active environment of Python; None without one, or if it is this command's own.

    Conda's `base` is active by default, so nobody has chosen it.
    """
    conda = ENVIRONMENT.get("CONDA_PREFIX") if ENVIRONMENT.get("CONDA_DEFAULT_ENV") != "base" else None
    for folder in (ENVIRONMENT.get("VIRTUAL_ENV"), conda):
        if folder and os.path.exists(os.path.join(folder, "bin", "python")):
            return None if os.path.realpath(folder) == os.path.realpath(sys.prefix) else folder
    return None
