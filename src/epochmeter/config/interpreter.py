"""Check that this Python can run the commands, before they import any library.

This module and the commands must be readable by Python 3.6, the default `python3` of older Jetsons.
"""

import os
import shlex
import signal
import sys
from importlib.util import find_spec

MIN_PYTHON = (3, 10)
REQUIRED_PACKAGES = ("hydra", "mlflow", "psutil", "rich")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def end_quietly(kind, error, trace):
    """End at Ctrl-C by SIGINT, as shells expect, and without a traceback; installed as `sys.excepthook`."""
    if issubclass(kind, KeyboardInterrupt):
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        except KeyboardInterrupt:  # a second Ctrl-C
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = end_quietly


def missing_requirements():
    """Return the error if this Python cannot run the command, with a hint; empty if it can."""
    missing = [name for name in REQUIRED_PACKAGES if find_spec(name) is None]
    if sys.version_info < MIN_PYTHON:
        problem = "is Python {}.{}; epochmeter needs {}.{} or newer".format(*sys.version_info[:2], *MIN_PYTHON)
    elif missing:
        problem = "lacks {}".format(", ".join(missing))
    else:
        return ""
    hint = "install epochmeter again for a newer Python"
    if not os.path.isdir(os.path.join(os.path.dirname(__file__), os.pardir, "conf")):  # a checkout
        make = "make setup" if os.getcwd() == ROOT else f"make -C {shlex.quote(ROOT)} setup"
        command = " ".join(map(shlex.quote, [os.path.relpath(os.path.join(ROOT, ".venv/bin/python")), *sys.argv]))
        hint = f"run `{make}` once, then `{command}`"
    return f"error: `{sys.executable}` {problem}\n  hint: {hint}"
