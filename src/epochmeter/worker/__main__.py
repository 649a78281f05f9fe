"""Start the training process: `python -m epochmeter.worker RUN_FOLDER` connects to the controller, then imports torch.

The import takes seconds of work. Connected before it, the process ends with its controller at any time.
"""

import atexit
import ctypes
import os
import sys
import sysconfig
import threading
from importlib import import_module
from typing import Any, List

from epochmeter.shared.garbage import without_collection
from epochmeter.shared.lifetime import die_with_parent
from epochmeter.worker.connection import connect, dump_stack_on_signal

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ("torch", "torchvision", "numpy", "PIL")


def main(folder: str, mode: str = "") -> None:
    rank = int(os.environ.get("RANK", 0))
    if not mode:  # Nsight may start this process from a thread that ends early
        die_with_parent()
    dump_stack_on_signal()
    connection = connect(rank, sends_requests=os.environ.get("LOCAL_RANK", "0") == "0")
    if mode:
        connection.die_with_controller()
    with without_collection():
        training: Any = import_module("epochmeter.worker.training")
    training.main(folder, connection, rank, under_nsight=bool(mode))
    if not mode:  # Nsight writes its result when the process ends in the usual way
        end()


def end() -> None:
    """End this process as Python does, without freeing the objects of all libraries, which takes half a second.

    Threads and exit functions of libraries, as of a dataset that writes files, are waited for. With code of the user,
    whose objects may have files that are written when they are freed, Python ends the process.
    """
    if has_code_of_user():
        return
    threading._shutdown()  # type: ignore[attr-defined]  # as Python calls it; all versions have it
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # what libraries in C have printed
    os._exit(0)


def has_code_of_user() -> bool:
    """Return whether a module is loaded that is no part of Python, of its installed packages or of this one."""
    return bool(modules_of_user())


def modules_of_user() -> "List[str]":
    """Return the names of those modules.

    A submodule counts as its package does: torch has some whose file does not exist.
    """
    roots = tuple(os.path.realpath(folder) + os.sep for folder in library_folders())
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    folders = {name: os.path.dirname(file) for name, file in files.items() if isinstance(file, str)}
    foreign = {folder for folder in {*folders.values()} if not (os.path.realpath(folder) + os.sep).startswith(roots)}
    return [
        name
        for name, folder in folders.items()
        if folder in foreign and folders.get(name.partition(".")[0], folder) in foreign
    ]


def library_folders() -> "List[str]":
    """Return the folders of Python and its packages, of this package, and of torch, which may be in another one."""
    packages = [PACKAGE, *(sys.modules[name].__path__[0] for name in LIBRARIES if name in sys.modules)]
    of_python = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [*of_python, *map(os.path.dirname, packages)]


if __name__ == "__main__":
    main(*sys.argv[1:])
