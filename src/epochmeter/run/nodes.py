"""The nodes that a run is spread over: under Slurm each has a steward of its own, started by srun, and the first of
them keeps the record.

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

from epochmeter.config.schema import Strategy
from epochmeter.machine.slurm import run_command

PORTS = range(16384, 32768)
"""Where the ranks of a job's nodes meet: below what a kernel gives away by itself."""


class Node(NamedTuple):
    """This node among those of a run."""

    number: int = 0
    nodes: int = 1
    first: str = "127.0.0.1"
    """The address of the first."""
    port: int | None = None
    name: str = ""

    @property
    def is_first(self) -> bool:
        return self.number == 0


def current_node(environment: Mapping[str, str], address: Callable[[str], str] | None = None) -> Node:
    """This node, as Slurm's step has it; alone where there is no step of several. ValueError unless each has a task."""
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
    """The first of a list of hosts as Slurm writes them, such as n[003-017,21],m4."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first.group() if first else listed)


def node_address(name: str) -> str:
    """The address of a node, which may go by another name on the network than in Slurm."""
    try:
        said = run_command("scontrol", "show", "node", name)
    except RuntimeError:
        return name
    told = re.search(r"\bNodeAddr=(\S+)", said)
    return told.group(1) if told else name


def check_strategy(strategy: Strategy, here: Node) -> None:
    """Refuses several nodes to what trains on one; ValueError."""
    if here.nodes > 1 and not strategy.has_processes:
        raise ValueError(
            f"strategy={strategy.name} trains on one node, and srun started {here.nodes}\n"
            "  hint: set `strategy=ddp`, or use srun -N1"
        )


def forbid_multi_node_resume(here: Node, folder: Path) -> None:
    """Refuses to leave out a completed run that other nodes have begun to make; ValueError."""
    if here.nodes > 1:
        raise ValueError(
            f"{folder} is completed, and {here.nodes - 1} more of {here.nodes} nodes have begun to measure it again\n"
            "  hint: omit `sweep.resume=true` to measure it again; `srun --kill-on-bad-exit` ends all nodes together"
        )


def run_folder_factory(made: Callable[..., Path], environment: Mapping[str, str]) -> Callable[..., Path]:
    """What gives a command its folder: `made` on the first node; any other's is its own, and is no record."""
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
    """Turns this process, a job on a node, into the training command of the project at `root`."""
    os.execv(sys.executable, [sys.executable, os.path.join(root, "src", "train.py"), *arguments])
