"""Torch's own launcher of ranks, which ends with the steward and tells it how a rank ended.

`python -m epochmeter.worker.torchrun ARGUMENTS` is `python -m torch.distributed.run ARGUMENTS` but for that.
"""

import os
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from epochmeter.worker.connection import Link, die_with_parent


def main(arguments):
    die_with_parent()
    link = Link(os.environ["EPOCHMETER_SOCKET"], rank=None, speaks=False)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        link.say("ended", rank=rank, code=failure.exitcode)
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
