"""torchrun, with its arguments, except that it ends with the controller and reports how a rank ended."""

import os
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from epochmeter.shared.protocol import RankExited
from epochmeter.worker.connection import ControllerConnection, die_with_parent


def main(arguments):
    die_with_parent()
    connection = ControllerConnection(os.environ["EPOCHMETER_SOCKET"], rank=None, sends_requests=False)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        connection.send(RankExited(rank, failure.exitcode))
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
