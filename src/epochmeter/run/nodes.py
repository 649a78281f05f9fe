"""Runs on several nodes: srun starts a controller on each of them, and the first one writes the record.

The ranks of `train.py` send what they measure to the first node's controller. Those of a script do not: its other
nodes leave it in a folder that all nodes share (node_windows.py).
"""

import os
import re
from collections.abc import Mapping, Sequence
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


class ScriptNode(NamedTuple):
    """This node among those on which a script runs.

    Attributes:
        folder: Where the nodes of the step exchange their windows; None for a single node.
    """

    number: int = 0
    nodes: int = 1
    name: str = ""
    folder: Path | None = None

    @property
    def is_first(self) -> bool:
        return self.number == 0


def script_node(environment: Mapping[str, str], multirun: Path) -> ScriptNode:
    """Return this node of a script, by the variables of a step of Slurm with one task per node."""
    nodes, tasks = (int(environment.get(f"SLURM_STEP_NUM_{name}", 1)) for name in ("NODES", "TASKS"))
    if nodes == 1 or tasks != nodes:
        return ScriptNode()
    step = f"{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', 0)}"
    restart = environment.get("SLURM_RESTART_COUNT", "0")  # of a requeued job, whose steps begin with 0 again
    folder = multirun / ".nodes" / (step if restart == "0" else f"{step}.{restart}")
    return ScriptNode(int(environment["SLURM_PROCID"]), nodes, environment.get("SLURMD_NODENAME", ""), folder)


def script_node_folder(environment: Mapping[str, str], multirun: Path, many: bool) -> Path | None:
    """Return the folder of the runs on a script's node other than the first; None on the first, or on a single one.

    ValueError for a sweep on several nodes.
    """
    node = script_node(environment, multirun)
    _check_single(node.nodes, many)
    if node.is_first or node.folder is None:
        return None
    folder = node.folder / str(node.number)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_node_count(wanted: int | None, environment: Mapping[str, str]) -> None:
    """Refuse a run whose key `nodes` is not the number of nodes that the step of Slurm has; InputError."""
    count = int(environment.get("SLURM_STEP_NUM_NODES", 1))
    if wanted not in (None, count):
        hint = f"for a run on {wanted} nodes use `-m hydra/launcher=slurm nodes={wanted}`, without srun"
        raise input_error(f"`nodes={wanted}`, but this command runs on {count}", hint)


def without_run_folder(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of a command for this node: only the first node writes to a folder that they name."""
    is_other = int(environment.get("SLURM_STEP_NUM_NODES", 1)) > 1 and environment["SLURM_PROCID"] != "0"
    return [argument for argument in arguments if not (is_other and argument.startswith("hydra.run.dir="))]


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
    _check_single(nodes, many)
    if nodes == 1 or environment["SLURM_PROCID"] == "0":
        return None
    folder, lock = create_folder()
    _held_locks.append(lock)
    os.chmod(folder, 0o755)
    return folder


def _check_single(nodes: int, many: bool) -> None:
    if nodes > 1 and many:
        hint = f"leave out srun, and add `hydra/launcher=slurm nodes={nodes}`, which starts each run on {nodes} nodes"
        raise input_error(f"srun started this sweep on {nodes} nodes at once", hint)
