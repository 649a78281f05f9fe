"""Start the training process, `python -m epochmeter.worker RUN_FOLDER`, or its ranks, connected by a Unix socket."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from epochmeter.config.installation import python_path
from epochmeter.config.request import users_environment
from epochmeter.machine.cores import usable_cores
from epochmeter.machine.temporary_folders import temporary_folder
from epochmeter.run.interpreters import find_interpreter
from epochmeter.run.nodes import Node
from epochmeter.run.worker_process import WorkerProcess
from epochmeter.shared.record import WORKER_LOG

EXIT_LIMIT_S = 10.0  # how long the training process may take to end after its last message
NSIGHT_LOG = "nsight.log"
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of a rank. They are removed, because torchrun sets them for the processes that it starts."""


@contextmanager
def launched(
    folder: Path,
    python: str | None,
    gpus: Sequence[str] = (),
    ranks: int | None = None,
    node: Node = Node(),  # noqa: B008 (immutable)
    limit_s: float | None = None,
    silence_s: float | None = None,
    nsight: Sequence[str] = (),
) -> Iterator[WorkerProcess]:
    """Start the training process of a run folder, and end it with all its children when the `with` block ends.

    It sees only the metered GPUs. If `nsight` begins the command of a program that profiles it, it trains a few steps.
    """
    log = folder / (NSIGHT_LOG if nsight else WORKER_LOG)
    worker = None
    try:
        with listening_socket() as listener, open(log, "wb") as output:
            process = subprocess.Popen(
                [*nsight, *_command([str(folder), *(["nsight"] if nsight else [])], python, ranks, node)],
                env=_environment(listener.getsockname(), gpus, ranks, node),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # In a session of its own it gets no Ctrl-C or Ctrl-Z from the terminal: the controller ends it.
                start_new_session=True,
            )
            worker = WorkerProcess(process, log, limit_s, silence_s)
            worker.accept_connections(listener, 1 if ranks is None else ranks + 1)
        yield worker
        with suppress(subprocess.TimeoutExpired):
            process.wait(worker.remaining_s() if nsight else EXIT_LIMIT_S)  # Nsight writes its result now
        if nsight and (process.returncode or 0) < 0:
            raise worker.exit_error()
    finally:
        if worker is not None:
            worker.terminate()


@contextmanager
def listening_socket() -> Iterator[socket.socket]:
    """Open a Unix socket for one connection of each process, in a temporary folder."""
    # A socket's path has at most 107 bytes, and $TMPDIR may be long or on a network.
    short = "/tmp" if os.access("/tmp", os.W_OK) else None
    with temporary_folder(short) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "link"))
        listener.listen()
        yield listener


def _command(arguments: Sequence[str], python: str | None, ranks: int | None, node: Node) -> list[str]:
    interpreter, worker = find_interpreter(python), ["-m", "epochmeter.worker", *arguments]
    if ranks is None:
        return [interpreter, *worker]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = node.port or free.getsockname()[1]
    # Not --standalone: on an old torch that is one port for all, and a name of the host that may not resolve.
    where = [f"--master_addr={node.first}", f"--master_port={port}", "--monitor_interval=0.1"]
    nodes = [f"--nnodes={node.nodes}", f"--node_rank={node.number}"]
    return [interpreter, "-m", "epochmeter.worker.torchrun", f"--nproc_per_node={ranks}", *nodes, *where, *worker]


def _environment(link: str, gpus: Sequence[str], ranks: int | None, node: Node) -> dict[str, str]:
    environment = {
        **{name: value for name, value in users_environment().items() if name not in TORCHRUN_VARIABLES},
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
        "EPOCHMETER_SOCKET": link,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **_visible_gpus_env(gpus),
    }
    if ranks is None:
        return environment
    # An equal share of the cores; torchrun would give each rank one thread.
    local = {"GLOO_SOCKET_IFNAME": "lo"} if node.nodes == 1 else {}
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // ranks)), **local, **environment}


def _visible_gpus_env(gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables that hide all other GPUs; none if the GPUs have no UUIDs."""
    names = ",".join(gpus)
    if not gpus or not all(name.startswith(("GPU-", "MIG-")) for name in gpus):
        return {}
    if not re.fullmatch(r"(GPU-[\da-f]{16},?)+", names):
        return {"CUDA_VISIBLE_DEVICES": names}
    # ROCm's UUIDs have 16 digits. HIP then numbers the visible GPUs from 0.
    return {"ROCR_VISIBLE_DEVICES": names, "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(gpus))))}
