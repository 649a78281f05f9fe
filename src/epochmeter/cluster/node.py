"""The process of a Slurm job on its node. submitit imports this module there, so it imports little."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from epochmeter.config.errors import REFUSAL_FILE
from epochmeter.config.installation import IS_INSTALLED


def exec_train(root: str, arguments: Sequence[str], refusal: str) -> NoReturn:
    """Replace this process, a job on a node, by the command of the project at `root`: measure, after `--`, or train.

    The command writes the problem of a run that it refuses to the file `refusal`.
    """
    os.environ[REFUSAL_FILE] = refusal
    installed, module = ("run", "measure") if "--" in arguments else ("train", "train")
    command = ["-m", "epochmeter.__main__", installed] if IS_INSTALLED else [os.path.join(root, f"src/{module}.py")]
    os.execv(sys.executable, [sys.executable, *command, *arguments])
