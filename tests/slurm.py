"""A real Slurm whose nodes are all on this host: slurmctld and a slurmd for each, of the distribution's packages."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRAMS = ("slurmctld", "slurmd", "sinfo", "sbatch", "srun")
LACK = "needs Slurm (Debian: apt-get install slurm-wlm) and root, who runs its daemons"
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2{feature}\n"
JOINING_S = 30


@dataclass
class Cluster:
    """A Slurm that runs, and its nodes."""

    environment: dict[str, str]
    """In which its programs find it."""
    daemons: dict[str, subprocess.Popen]
    """slurmctld, and each node's slurmd by its name."""

    def ask(self, *command: str) -> str:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout

    def drop_out(self, node: str) -> None:
        """Ends a node as a power cut does: its daemon and all that runs there; Slurm notices."""
        self.daemons.pop(node).kill()
        for process in on_node(node, self.environment["SLURM_CONF"]):
            with suppress(psutil.Error):
                process.kill()
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power cut")

    def come_back(self, node: str) -> None:
        self.daemons[node] = daemon(["slurmd", "-D", "-N", node], self.environment)
        until(lambda: self.ask("sinfo", "-h", "-n", node, "-o", "%T").strip() == "idle")


def is_here() -> bool:
    """Whether there is a Slurm to start, and the right to."""
    return all(map(shutil.which, PROGRAMS)) and os.geteuid() == 0


@contextmanager
def running(folder: Path, nodes: Mapping[str, str]) -> Iterator[Cluster]:
    """A Slurm in a folder, of nodes that have a feature each (or none: ""), until it is left."""
    (folder / "state").mkdir()
    for name in nodes:
        (folder / f"spool-{name}").mkdir()
    port, *ports = free_ports(1 + len(nodes))
    here = {"host": socket.gethostname().partition(".")[0], "folder": folder, "user": getpass.getuser()}
    lines = [
        NODE.format(name=name, port=own, feature=f" Features={feature}" if feature else "", **here)
        for (name, feature), own in zip(nodes.items(), ports, strict=True)
    ]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(port=port, **here) + "".join(lines))
    cluster = Cluster({**os.environ, "SLURM_CONF": str(conf)}, {})
    try:
        cluster.daemons["slurmctld"] = daemon(["slurmctld", "-D"], cluster.environment)
        for name in nodes:
            cluster.daemons[name] = daemon(["slurmd", "-D", "-N", name], cluster.environment)
        told = ["sinfo", "--noheader", "--format=%T %D"]
        until(
            lambda: (
                subprocess.run(told, env=cluster.environment, capture_output=True, text=True).stdout.strip()
                == f"idle {len(nodes)}"
            )
        )
        yield cluster
    finally:
        for each in cluster.daemons.values():
            each.terminate()
        for each in cluster.daemons.values():
            try:
                each.wait(JOINING_S)
            except subprocess.TimeoutExpired:  # it waits for a job that would not end
                each.kill()
                each.wait()
        for name in nodes:
            for process in on_node(name, str(conf)):
                with suppress(psutil.Error):
                    process.kill()


def daemon(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen:
    folder = Path(environment["SLURM_CONF"]).parent
    with open(folder / f"{command[0]}{command[-1]}.log", "wb") as log:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def on_node(node: str, conf: str) -> Iterator[psutil.Process]:
    """What runs on a node of this cluster: its jobs' processes, and what of Slurm's watches over them."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            # What watches over a job writes its title over its own environment: it is known by its job's.
            watches = process.name() == "slurmstepd"
            for each in process.children() if watches else [process]:
                environment = each.environ()
                if environment.get("SLURM_CONF") == conf and environment.get("SLURMD_NODENAME") == node:
                    yield process
                    break


def until(told, limit_s: float = JOINING_S) -> None:
    end = time.monotonic() + limit_s
    while not told():
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
