"""A real Slurm from the distribution's packages; its nodes are all on this host: slurmctld and one slurmd each."""

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from project import free_ports, wait_until

PROGRAMS = ("slurmctld", "slurmd", "sinfo", "sbatch", "srun")
REQUIREMENTS = "needs Slurm (Debian: apt-get install slurm-wlm) and root, for its daemons"
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
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
MessageTimeout=60
BatchStartTimeout=120
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES State=UP
"""
"""By default, the scheduler starts jobs seconds after they were submitted or a node became free."""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2{feature}\n"
LIMIT_S = 30


@dataclass
class Cluster:
    """A running Slurm: the environment of its programs, slurmctld, and the slurmd of each node by node name."""

    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen]

    def run(self, *command: str, check: bool = True) -> str:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=check).stdout

    def stop_node(self, node: str) -> None:
        """Kill a node's daemon and processes, as a power cut does, and make Slurm notice it."""
        self.daemons.pop(node).kill()
        self.kill_processes(node)
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power cut")

    def kill_processes(self, node: str) -> None:
        """Kill the processes on a node: those of jobs, and Slurm's that supervise them."""
        for process in processes_on(node, self.environment["SLURM_CONF"]):
            with suppress(psutil.Error):
                process.kill()

    def start_node(self, node: str) -> None:
        self.daemons[node] = daemon(["slurmd", "-D", "-N", node], self.environment)
        wait_until(lambda: self.run("sinfo", "-h", "-n", node, "-o", "%T").strip() == "idle", LIMIT_S, pause_s=0.2)


def is_available() -> bool:
    """Return whether Slurm is installed and may be started."""
    return all(map(shutil.which, PROGRAMS)) and os.geteuid() == 0


@contextmanager
def running(folder: Path, nodes: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a Slurm in a folder, with a feature per node ("": none); it ends with the context."""
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
        states = ["sinfo", "--noheader", "--format=%T %D"]
        wait_until(lambda: cluster.run(*states, check=False).strip() == f"idle {len(nodes)}", LIMIT_S, pause_s=0.2)
        yield cluster
    finally:
        for process in cluster.daemons.values():
            process.terminate()
        for process in cluster.daemons.values():
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:  # it waits for a job that does not end
                process.kill()
                process.wait()
        for name in nodes:
            cluster.kill_processes(name)


def daemon(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen:
    folder = Path(environment["SLURM_CONF"]).parent
    with open(folder / f"{command[0]}{command[-1]}.log", "wb") as log:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def processes_on(node: str, conf: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            # slurmstepd overwrites its own environment with its title, so its children are checked.
            for candidate in process.children() if process.name() == "slurmstepd" else [process]:
                environment = candidate.environ()
                if environment.get("SLURM_CONF") == conf and environment.get("SLURMD_NODENAME") == node:
                    yield process
                    break
