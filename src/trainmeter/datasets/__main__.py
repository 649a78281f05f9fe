"""`python -m trainmeter.datasets SPEC FOLDER` makes a dataset; its lines tell how far it is.

Ends with 2 where the job asked for what cannot be, with 1 where the machine failed it; stderr says why.
"""

import json
import signal
import sys
from functools import partial
from pathlib import Path

from trainmeter.datasets.make import make


def main(spec: str, folder: str) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is half-made goes
    try:
        make(json.loads(spec), Path(folder), say=partial(print, flush=True))
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
