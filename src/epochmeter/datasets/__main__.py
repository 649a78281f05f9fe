"""`python -m epochmeter.datasets make|adopt|stage ARGUMENTS` brings a dataset to its place.

ARGUMENTS are a JSON object: those of the function of that name, but for `say`. Its lines tell how far it is. Ends with
2 where the job asked for what cannot be, with 1 where the machine failed it; stderr says why.
"""

import json
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from epochmeter.datasets.make import adopt, make
from epochmeter.datasets.stage import stage

ACTS: dict[str, Callable[..., Any]] = {"make": make, "adopt": adopt, "stage": stage}
PATHS = ("folder", "home", "note", "place")


def main(act: str, text: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is half-made goes
    arguments = json.loads(text)
    paths = {name: Path(arguments[name]) for name in PATHS if arguments.get(name) is not None}
    try:
        ACTS[act](**{**arguments, **paths}, say=partial(print, flush=True))
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
