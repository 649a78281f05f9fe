"""Start the training process: `python -m epochmeter.worker RUN_FOLDER` connects to the controller, then imports torch.

The import takes seconds of work. Connected before it, the process ends with its controller at any time.
"""

import os
import sys
from importlib import import_module

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
    import_module("epochmeter.worker.training").main(folder, connection, rank, under_nsight=bool(mode))


if __name__ == "__main__":
    main(*sys.argv[1:])
