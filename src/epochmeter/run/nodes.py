"""Runs on several nodes: srun starts a controller on each of them, and the first one writes the record."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from epochmeter.machine.slurm import run_command
from epochmeter.machine.temporary_folders import create_folder
from epochmeter.shared.problem import input_error

_held_locks: list[int] = []  # of this process's folder, until it ends
PORTS = range(16384, 32768)  # below the ephemeral ports of Linux


class Node(NamedTuple):
    """This node among those of a run, by its name in Slurm; the ranks connect to a port of the first node."""

    number: int = 0
    nodes: int = 1
    first: str = "127.0.0.1"
    port: int | None = None
    name: str = ""

    @property
    def is_first(self) -> bool:
        return self.number == 0


def current_node(environment: Mapping[str, str]) -> Node:
    """Return this node, by the variables of Slurm's step; ValueError if it has not exactly one task per node."""
    count = int(environment.get("SLURM_STEP_NUM_NODES", 1))
    if count == 1:
        return Node()
    tasks = int(environment["SLURM_STEP_NUM_TASKS"])
    if tasks != count:
        raise input_error(
            f"srun started {tasks} tasks on {count} nodes, but each node needs one, which starts its ranks",
            "srun --ntasks-per-node=1, with `strategy.ranks=` per node",
        )
    step = 97 * int(environment["SLURM_JOB_ID"]) + int(environment.get("SLURM_STEP_ID", 0))
    return Node(
        number=int(environment["SLURM_PROCID"]),
        nodes=count,
        first=first_address(environment["SLURM_STEP_NODELIST"]),
        port=PORTS[step % len(PORTS)],
        name=environment.get("SLURMD_NODENAME", ""),
    )


def first_address(listed: str) -> str:
    """Return the network address of the first of Slurm's nodes in a list such as `n[003-017,21],m4`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    name = re.sub(r"\[(\w+)[^\]]*\]", r"\1", first.group() if first else listed)
    try:
        address = re.search(r"\bNodeAddr=(\S+)", run_command("scontrol", "show", "node", name))
    except RuntimeError:  # a container often lacks Slurm's programs
        return name
    return address.group(1) if address else name


def other_node_folder(environment: Mapping[str, str], many: bool) -> Path | None:
    """Return a temporary folder on a node other than the first, None elsewhere; ValueError for a sweep on several."""
    nodes = int(environment.get("SLURM_STEP_NUM_NODES", 1))
    if nodes > 1 and many:
        raise input_error(f"a sweep cannot run on {nodes} nodes at once", "start one run at a time with srun")
    if nodes == 1 or environment["SLURM_PROCID"] == "0":
        return None
    folder, lock = create_folder()
    _held_locks.append(lock)
    os.chmod(folder, 0o755)
    return folder
