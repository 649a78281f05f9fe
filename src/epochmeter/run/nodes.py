"""Runs on several nodes: srun starts a controller on each of them, and the first one writes the record.

srun -N2 --ntasks-per-node=1 python src/train.py strategy=ddp strategy.ranks=4
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from epochmeter.config.installation import IS_INSTALLED
from epochmeter.config.schema import Strategy
from epochmeter.machine.slurm import run_command

PORTS = range(16384, 32768)
"""Ports for the connection between nodes: below the ephemeral ports of Linux."""


class Node(NamedTuple):
    """This node among those of a run.

    Attributes:
        first: The address of the first node.
        port: The port on which the ranks connect; None: any free one.
        name: Its name in Slurm.
    """

    number: int = 0
    nodes: int = 1
    first: str = "127.0.0.1"
    port: int | None = None
    name: str = ""

    @property
    def is_first(self) -> bool:
        return self.number == 0


def current_node(environment: Mapping[str, str], address: Callable[[str], str] | None = None) -> Node:
    """Return this node, from the variables of Slurm's step; a single node without them.

    `address` returns the address of a node by its name in Slurm; by default from `scontrol`.

    Raises:
        ValueError: The step has not exactly one task per node.
    """
    count = int(environment.get("SLURM_STEP_NUM_NODES", 1))
    if count == 1:
        return Node()
    tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    if tasks != count:
        raise ValueError(
            f"srun started {tasks} tasks on {count} nodes, but each node needs one, which starts its ranks\n"
            "  hint: srun --ntasks-per-node=1, with `strategy.ranks=` per node"
        )
    first = first_host(environment["SLURM_STEP_NODELIST"])
    step = 97 * int(environment["SLURM_JOB_ID"]) + int(environment.get("SLURM_STEP_ID", 0))
    return Node(
        number=int(environment["SLURM_PROCID"]),
        nodes=count,
        first=(address or node_address)(first),
        port=PORTS[step % len(PORTS)],
        name=environment.get("SLURMD_NODENAME", ""),
    )


def first_host(listed: str) -> str:
    """Return the first host of a list in Slurm's notation, such as `n[003-017,21],m4`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first.group() if first else listed)


def node_address(name: str) -> str:
    """Return the network address of a node, which may differ from its name in Slurm."""
    try:
        output = run_command("scontrol", "show", "node", name)
    except RuntimeError:
        return name
    address = re.search(r"\bNodeAddr=(\S+)", output)
    return address.group(1) if address else name


def check_strategy(strategy: Strategy, here: Node) -> None:
    """Refuse a strategy that trains on one node if there are several; ValueError."""
    if here.nodes > 1 and not strategy.has_processes:
        raise ValueError(
            f"strategy={strategy.name} trains on one node, and srun started {here.nodes}\n"
            "  hint: set `strategy=ddp`, or use srun -N1"
        )


def forbid_multi_node_resume(here: Node, folder: Path) -> None:
    """Refuse to skip a completed run on several nodes, because the others would measure it again; ValueError."""
    if here.nodes > 1:
        raise ValueError(
            f"{folder} is completed, and {here.nodes - 1} more of {here.nodes} nodes have begun to measure it again\n"
            "  hint: omit `sweep.resume=true` to measure it again; `srun --kill-on-bad-exit` ends all nodes together"
        )


def run_folder_factory(made: Callable[..., Path], environment: Mapping[str, str]) -> Callable[..., Path]:
    """Return what creates a command's sweep folder: `made` on the first node, a temporary folder on others."""
    here = current_node(environment, address=str)
    if here.nodes == 1:
        return made

    def of_one_run(command: Sequence[str], many: bool, again: bool) -> Path:
        if many:
            raise ValueError(
                f"a sweep cannot run on {here.nodes} nodes at once\n  hint: start one run at a time with srun"
            )
        if here.is_first:
            return made(command, many, again)
        folder = Path(tempfile.mkdtemp(prefix="epochmeter-node-"))
        os.chmod(folder, 0o755)
        return folder

    return of_one_run


def exec_train(root: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process, a job on a node, by the command of the project at `root`: measure, after `--`, or train."""
    installed, module = ("run", "measure") if "--" in arguments else ("train", "train")
    command = ["-m", "epochmeter.__main__", installed] if IS_INSTALLED else [os.path.join(root, f"src/{module}.py")]
    os.execv(sys.executable, [sys.executable, *command, *arguments])
