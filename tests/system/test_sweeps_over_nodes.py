"""Sweeps over the number of nodes with `-m hydra/launcher=slurm`, on a real Slurm with two nodes on this host."""

import re
import sys

import pytest
from project import free_ports
from system.conftest import LIMIT_S, nodes_of, result_of
from test_measure import RANKED

from epochmeter.shared.record import Record

pytestmark = pytest.mark.system


def test_sweep_over_the_number_of_nodes_trains_with_the_ranks_of_all(sweep):
    keys = {"strategy": "ddp", "strategy.ranks": 1, "nodes": "1,2", "device": "cpu", "workers": 0, "epochs": 2,
            "batch": 32, "meter": "estimate", "meter.tdp_w": 65}  # fmt: skip
    launcher = ["-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5"]
    locks = "machine.lock_dir=" + str(sweep.root / "locks") + "-${oc.env:SLURMD_NODENAME,none}"
    command = [key for key in sweep.quick(*launcher, **keys) if "lock_dir" not in key] + [locks]
    environment = {**sweep.cluster.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    code, output = result_of(sweep.start("train", *command, **environment))
    assert code == 0, output
    records = sweep.records()
    assert [record.summary()["state"] for record in records] == ["completed"] * 2
    assert [record.run()["training"]["ranks"] for record in records] == [1, 2]
    assert nodes_of(sweep)[1] == "n[0-1]"
    (line, *_) = [window for window in records[1].windows() if window["window"] == "epoch"]
    assert [node["node"] for node in line["energy"]["nodes"]] == ["n1"]
    # Another node's controller has no folder of runs.
    assert sorted(path.name for path in (sweep.root / "multirun").glob("*/*/job.json")) == ["job.json"] * 2

    # Rehearsals are not checked by their nodes: one of them would have to tell the others.
    code, again = result_of(sweep.start("train", *command, **environment))
    assert code == 0, again
    assert len(re.findall(r"^\d .*skipped", again, re.M)) == 2


def test_sweep_of_a_script_over_the_number_of_nodes_has_the_ranks_of_all(sweep):
    (sweep.root / "ranked.py").write_text(RANKED)
    (port,) = free_ports(1)
    launcher = f"{sys.executable} -m torch.distributed.run --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID"
    script = ["bash", "-c", f"{launcher} --nproc_per_node=1 --master_port={port} ranked.py"]
    keys = ["device=cpu", "tracking=none", "warmup_epochs=0", "nodes=1,2", "sweep.wait_idle=0"]
    keys += ["machine.lock_dir=" + str(sweep.root / "locks") + "-${oc.env:SLURMD_NODENAME,none}"]
    command = ["-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", *keys, *script]
    environment = {**sweep.cluster.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    code, output = result_of(sweep.start("measure", *command, **environment))
    assert code == 0, output
    records = sweep.records()
    assert [record.run()["training"].get("ranks", 1) for record in records] == [1, 2]
    samples = [[line["metrics"]["epoch/samples"] for line in record.windows() if line["window"] == "epoch"]
               for record in records]  # fmt: skip
    assert samples == [[64] * 3] * 2
    assert Record(records[1].folder / "nodes" / "n1").is_completed()


UNTIL_ENOUGH = """
import os, time, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
enough = torch.zeros(1)
while not enough.item():
    for inputs in torch.utils.data.DataLoader(torch.ones(16, 4), 4):
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep(0.05)
    enough += os.path.exists("enough")
    torch.distributed.all_reduce(enough)
"""


@pytest.fixture
def ranked_sweep(sweep):
    """ranked_sweep("2,1") -> the started command of a sweep over nodes; its runs end when there is a file `enough`."""
    (sweep.root / "ranked.py").write_text(UNTIL_ENOUGH)
    (port,) = free_ports(1)
    launcher = f"{sys.executable} -m torch.distributed.run --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID"
    script = ["bash", "-c", f"exec {launcher} --nproc_per_node=1 --master_port={port} ranked.py"]
    environment = {**sweep.cluster.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    keys = ["device=cpu", "tracking=none", "warmup_epochs=0", "sweep.wait_idle=0"]
    keys += ["machine.lock_dir=" + str(sweep.root / "locks") + "-${oc.env:SLURMD_NODENAME,none}"]

    def start(nodes):
        command = ["-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", *keys, f"nodes={nodes}", *script]
        return sweep.start("measure", *command, **environment)

    return start


def until_two_epochs(project):
    """Wait until the first run of a sweep has two epochs of two ranks; return its record."""
    project.until(lambda: any(len(record.windows()) >= 2 for record in project.records()), LIMIT_S)
    return project.records()[0]


def test_node_killed_within_a_sweep_over_nodes_is_named_and_the_sweep_is_completed(sweep, ranked_sweep):
    command = ranked_sweep("2,1")
    killed = until_two_epochs(sweep)
    before = killed.windows()
    sweep.cluster.stop_node("n1")
    (sweep.root / "enough").touch()  # the other run has a single epoch
    try:
        code, output = result_of(command)
    finally:
        sweep.cluster.start_node("n1")
    assert code == 1, output
    summary = killed.summary()
    assert (summary["state"], summary["failure"]["code"]) == ("failed", "node")
    assert (summary["failure"]["where"], killed.windows()[: len(before)]) == ({"host": "n1"}, before)
    other = Record(killed.folder.with_name("1"))
    assert other.is_completed()

    measured = other.run()["record_id"]
    code, output = result_of(ranked_sweep("2,1"))
    assert code == 0, output
    assert (killed.is_completed(), other.run()["record_id"]) == (True, measured)


def test_time_limit_within_a_run_on_two_nodes_is_the_reason_of_its_end(sweep, ranked_sweep):
    command = ranked_sweep("2")
    record = until_two_epochs(sweep)
    before = record.windows()
    (job,) = sweep.cluster.run("squeue", "--noheader", "--format=%i").split()
    sweep.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    code, output = result_of(command)
    assert code == 1, output
    summary = record.summary()
    assert (summary["state"], summary["failure"]["code"]) == ("failed", "timeout")
    assert summary["failure"]["where"]["key"] == "hydra.launcher.time"
    assert record.windows()[: len(before)] == before
    assert sweep.at_work_in(record.folder) == []
    sweep.until(lambda: not sweep.cluster.run("squeue", "--noheader"))

    (sweep.root / "enough").touch()
    code, output = result_of(ranked_sweep("2"))
    assert code == 0, output
    assert record.is_completed()
