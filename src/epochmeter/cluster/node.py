"""The process of a Slurm job on its first node. submitit imports this module there, so it imports little."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from epochmeter.config.errors import REFUSAL_FILE
from epochmeter.config.installation import IS_INSTALLED


def exec_train(root: str, arguments: Sequence[str], refusal: str, nodes: int = 1) -> NoReturn:
    """Replace this process, a job on its first node, by the command of the project at `root`, on all of its nodes.

    It measures a script, after `--`, or trains. The command writes the problem of a run that it refuses to the file
    `refusal`.
    """
    os.environ[REFUSAL_FILE] = refusal
    installed, module = ("run", "measure") if "--" in arguments else ("train", "train")
    command = ["-m", "epochmeter.__main__", installed] if IS_INSTALLED else [os.path.join(root, f"src/{module}.py")]
    line = [sys.executable, *command, *arguments]
    if nodes > 1:
        # Each task has all cores of its node: without --cpus-per-task, a step gets those of the job.
        counts = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        line = ["srun", *counts, "--cpu-bind=none", "--kill-on-bad-exit=0", *line]
    os.execvp(line[0], line)
