"""Start the training process: `python -m epochmeter.worker RUN_FOLDER` connects to the controller, then imports torch.

The import takes seconds of work. Connected before it, the process ends with its controller at any time.
"""

import atexit
import gc
import os
import sys
import threading
from importlib import import_module
from typing import Any

from epochmeter.shared.lifetime import die_with_parent
from epochmeter.worker.connection import connect, dump_stack_on_signal


def main(folder: str, mode: str = "") -> None:
    rank = int(os.environ.get("RANK", 0))
    if not mode:  # Nsight may start this process from a thread that ends early
        die_with_parent()
    dump_stack_on_signal()
    connection = connect(rank, sends_requests=os.environ.get("LOCAL_RANK", "0") == "0")
    if mode:
        connection.die_with_controller()
    training = import_without_collection("epochmeter.worker.training")
    training.main(folder, connection, rank, under_nsight=bool(mode))
    if not mode:  # Nsight writes its result when the process ends in the usual way
        end()


def import_without_collection(name: str) -> Any:
    """Import a module while no garbage is collected: imports create none, and the search takes a third of their time.

    Afterwards, the imported objects are in the oldest generation, as they usually are.
    """
    gc.disable()
    module = import_module(name)
    freeze()
    if hasattr(gc, "unfreeze"):
        gc.unfreeze()
    gc.enable()
    return module


def end() -> None:
    """End this process as Python does, without freeing the objects of all libraries, which takes half a second.

    Threads and exit functions of libraries, as of a dataset that writes files, are waited for.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as Python calls it; all versions have it
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def freeze() -> None:
    """Exclude all present objects from garbage collection, if Python can (3.7)."""
    if hasattr(gc, "freeze"):
        gc.freeze()


if __name__ == "__main__":
    main(*sys.argv[1:])
