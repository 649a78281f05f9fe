"""Python imports this module at its start, in a measured script and its child processes: it prepares the agent.

The folder of this file is on the PYTHONPATH of these processes. Another `sitecustomize` is imported as well.

Until the process imports torch, nothing is imported that Python's start has not imported: a file next to a script may
have the name of a module of the standard library, such as `json.py`, and the script must find that file.
"""

import atexit
import os
import sys

MYPY = False
if MYPY:  # as `TYPE_CHECKING`, which would import `typing`
    from typing import Any, Callable

FOLDER = os.path.dirname(os.path.abspath(__file__))
IMPORT_PATH = os.path.join(os.path.dirname(os.path.dirname(FOLDER)), "shared", "path")


class TorchFinder:
    """Calls a function when the process imports torch, and finds torch by the finder that it returns, if any."""

    def __init__(self, act: "Callable[[], Any]") -> None:
        self._act = act

    def find_spec(self, name: str, path: object = None, target: object = None) -> "Any":
        """Return the specification of torch."""
        if name != "torch":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        finder = self._act()
        return None if finder is None else finder.find_spec(name, path, target)


def call_hooks(name: str, *values: object) -> "Any":
    """Call a function of the agent's hooks and return its result; report its failure, and return None."""
    sys.path.insert(0, IMPORT_PATH)  # only for these imports: the script must find the same modules as without
    try:
        from epochmeter.agent import hooks

        return getattr(hooks, name)(*values)
    except Exception as problem:
        try:
            if sys.stderr is not None:
                print("epochmeter: not measured: {}: {}".format(type(problem).__name__, problem), file=sys.stderr)
        except Exception:  # the script has closed it
            return None
    finally:
        if IMPORT_PATH in sys.path:
            sys.path.remove(IMPORT_PATH)


def report_missing_module() -> None:
    """Report the module that this interpreter lacks, if that has ended the script."""
    error = getattr(sys, "last_value", None)  # of the exception that no one handled
    if isinstance(error, ImportError) and type(error).__name__ == "ModuleNotFoundError":
        call_hooks("report_missing_module", arguments, error.name)


def note_unmeasured() -> None:
    """Note that a program which a measured process has started imports torch, as it may train."""
    if getattr(sys, "argv", ["-c"])[:1] == ["-c"]:  # a process of `multiprocessing`, such as a DataLoader worker
        return
    try:  # noqa: SIM105  # `contextlib` is not imported
        os.close(os.open(unmeasured, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:  # the run has ended
        pass


def prepare() -> None:
    """Prepare the agent in a process that is measured, or the note of a program that one has started."""
    if arguments is not None:
        if "torch" in sys.modules:  # by another `sitecustomize`, or by a file of site-packages
            call_hooks("install", arguments)
        else:
            sys.meta_path.insert(0, TorchFinder(lambda: call_hooks("find_torch", arguments)))
        atexit.register(report_missing_module)
    elif unmeasured:
        sys.meta_path.insert(0, TorchFinder(note_unmeasured))


sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != FOLDER]
this_module = sys.modules.pop("sitecustomize")
try:
    __import__("sitecustomize")  # another one, which this module hides
except ImportError as problem:
    if problem.name != "sitecustomize":
        raise  # Python reports an error of the other one
finally:
    sys.modules.setdefault("sitecustomize", this_module)
    arguments = os.environ.get("EPOCHMETER_AGENT")  # which the script may delete
    unmeasured = os.environ.get("EPOCHMETER_UNMEASURED", "")
    prepare()
