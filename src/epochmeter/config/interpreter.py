"""Whether this Python can run the entries: told before anything is imported that another one may not have.

It holds to what Python 3.6 reads, as the entries do: on a Jetson that is the one at hand.
"""

import os
import shlex
import signal
import sys
from importlib.util import find_spec

OLDEST = (3, 10)
NEEDED = ("hydra", "mlflow", "psutil", "rich")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))


def end_quietly(kind, error, trace):
    """End at Ctrl-C by SIGINT, as shells expect, and without a traceback; installed as `sys.excepthook`."""
    if issubclass(kind, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.__excepthook__(kind, error, trace)


sys.excepthook = end_quietly


def lack():
    """What this Python lacks to run the command that was typed, and what to type instead; empty where it is right."""
    if sys.version_info < OLDEST:
        what = "is Python {}.{}, and epochmeter needs {}.{} or newer".format(*sys.version_info[:2], *OLDEST)
    else:
        missing = [name for name in NEEDED if find_spec(name) is None]
        what = "has no {}, which epochmeter needs".format(", ".join(missing)) if missing else ""
    return f"{sys.executable} {what}. {remedy(ROOT, sys.argv)}" if what else ""


def remedy(root, command):
    """What to type in place of a command, so that the project's own Python runs it."""
    python = os.path.join(root, ".venv", "bin", "python")
    make = "make setup" if root == os.getcwd() else f"make -C {shlex.quote(root)} setup"
    first = "Type" if os.path.exists(python) else f"Type `{make}` once, then"
    return f"{first}: {' '.join(map(shlex.quote, [os.path.relpath(python), *command]))}"
