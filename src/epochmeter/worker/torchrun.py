"""torchrun, with its arguments, except that it ends with the controller and reports how a rank ended."""

import sys
from typing import List

from epochmeter.shared.lifetime import die_with_parent
from epochmeter.shared.protocol import RankExited
from epochmeter.worker.connection import connect


def main(arguments: List[str]) -> None:
    die_with_parent()
    connection = connect(rank=None, sends_requests=False)
    # Late, as the import takes seconds of work.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        connection.send(RankExited(rank, failure.exitcode))
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
