"""How the timed parts of a DataLoader get into workers that are spawned: without the agent, maybe without this package.

The file `in_worker.py` is run there by its path. Pickles refer to the standard library only.
"""

import operator
import os
import runpy
from typing import Any

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "in_worker.py")


class FileOfWorker:
    """Pickled as a call that runs the file: a spawned worker need not find this package."""

    def __reduce__(self) -> Any:
        return runpy.run_path, (FILE,)


class Rebuilt:
    """Pickled as the function `rebuilt` of that file, which makes a part again from its kind and arguments."""

    def __call__(self, *_: object) -> None:
        """Do nothing: pickle requires a function."""

    def __reduce__(self) -> Any:
        return operator.getitem, (FileOfWorker(), "rebuilt")


REBUILT = Rebuilt()
