"""A real Slurm of two nodes, both on this host: the same command as elsewhere, under srun."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from trainmeter.record import Record

pytestmark = pytest.mark.system
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
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
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=n0,n1 Default=YES State=UP
"""
JOINING_S = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment in which srun finds two nodes."""
    if not all(map(shutil.which, ("slurmctld", "slurmd", "srun"))) or os.geteuid() != 0:
        pytest.skip("needs Slurm (Debian: apt-get install slurm-wlm) and root, who runs its daemons")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool-n0", "spool-n1"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname().partition(".")[0], folder=folder, ports=free_ports(3)))
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    commands = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", name] for name in ("n0", "n1"))]
    daemons = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}{command[-1]}.log", "wb") as log:
                daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        until = time.monotonic() + JOINING_S
        asked = ["sinfo", "--noheader", "--format=%T %D"]
        while subprocess.run(asked, env=environment, capture_output=True, text=True).stdout.strip() != "idle 2":
            assert time.monotonic() < until, (folder / "slurmctld-D.log").read_text()[-2000:]
            time.sleep(0.2)
        yield environment
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture
def srun(cluster, project):
    """srun(overrides) -> the command under srun on both nodes, begun."""

    def start(*flags, tasks=2, **overrides):
        asked = {"strategy": "ddp", "strategy.ranks": 1, "device": "cpu", "workers": 0, **overrides}
        asked["machine.lock_dir"] = "locks$SLURM_PROCID"  # a node's own, though they are one host
        command = f"exec {sys.executable} src/train.py {' '.join(project.quick(*flags, **asked))}"
        process = subprocess.Popen(
            ["srun", "-N2", f"-n{tasks}", "bash", "-c", command],
            cwd=project.root,
            env={**cluster, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        project.started.append(process)
        return process

    return start


def ended(process):
    """What a command says to its end, in one line."""
    out, _ = process.communicate(timeout=100)
    return process.returncode, " ".join(out.split())


def test_two_nodes_make_one_record_whose_energy_is_that_of_both(srun, project):
    code, said = ended(srun(epochs=2, batch=32, meter="estimate", **{"meter.tdp_w": 65}))
    assert code == 0, said
    record = project.record()
    assert record.is_whole()
    assert record.run()["training"]["ranks"] == 2
    lines = [line for line in record.windows() if line["window"] == "epoch" and line["energy"]["joules"]]
    for line in lines:
        (other,) = line["energy"]["nodes"]
        assert other["node"] == "n1"
        if "estimated_energy_j" in other["metrics"]:  # or it says why not, on a host that is busy
            both = line["energy"]["joules"]["cpu"] + other["joules"]["cpu"]
            assert line["metrics"]["epoch/estimated_energy_j"] == pytest.approx(both)
        assert line["metrics"]["rank_max/e2e_s"] >= line["metrics"]["epoch/e2e_s"]
    splits = record.run()["dataset"]["splits"]
    assert {line["metrics"]["epoch/samples"] for line in lines} <= {splits["train"] + splits["train"] % 2}


def other_node():
    """The rank of the node that is not the first."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = process.cmdline()
            if "trainmeter.worker" in line and "trainmeter-node-" in line[-1] and "torchrun" not in " ".join(line):
                yield process


def test_a_rank_that_is_killed_on_one_node_ends_the_run_on_both(srun, project):
    process = srun(epochs=1000, batch=32, evaluate="false")
    record = project.until_in_training()
    (rank,) = (each for each in other_node() if each.cwd() == str(project.root))
    folder = Path(rank.cmdline()[-1]).parent
    began = time.monotonic()
    rank.send_signal(signal.SIGKILL)
    code, said = ended(process)
    shutil.rmtree(folder)  # left for its log
    assert code != 0
    assert time.monotonic() - began < 30
    assert "rank 1 was killed by SIGKILL" in said
    assert Record(record.folder).summary()["state"] == "failed"
    assert project.at_work_in(record.folder) == []


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"tasks": 4}, "srun started 4 tasks on 2 nodes"),
        ({"strategy": "single"}, "strategy=single trains on one node, and srun started 2"),
    ],
)
def test_what_cannot_be_on_two_nodes_is_refused(srun, how, says):
    code, said = ended(srun(**how))
    assert code != 0
    assert says in said
