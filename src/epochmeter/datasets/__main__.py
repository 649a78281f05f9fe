"""Prepare a dataset in a process of its own: `python -m epochmeter.datasets make|adopt|stage ARGUMENTS`.

ARGUMENTS is a JSON object with the arguments of that function except `say`. Progress goes to stdout. The exit code is
2 for an invalid configuration and 1 if the machine failed; stderr has the message.
"""

import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from epochmeter.config.schema import Dataset
from epochmeter.datasets.make import adopt, make
from epochmeter.datasets.stage import stage

COMMANDS: dict[str, Callable[..., None]] = {"make": make, "adopt": adopt, "stage": stage}
PATH_ARGUMENTS = ("folder", "home", "user_manifest")


def main(command: str, text: str) -> int:
    # Unwind, so that partial folders are deleted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    arguments = json.loads(text)
    arguments["dataset"] = Dataset.from_dict(arguments["dataset"])
    paths = {name: Path(arguments[name]) for name in PATH_ARGUMENTS if arguments.get(name) is not None}
    try:
        COMMANDS[command](**{**arguments, **paths}, say=partial(print, flush=True))
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
