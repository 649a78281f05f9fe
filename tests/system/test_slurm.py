"""A real Slurm of two nodes, both on this host: the same command as elsewhere, under srun."""

import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import slurm

from epochmeter.shared.record import Record

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment in which srun finds two nodes."""
    if not slurm.is_here():
        pytest.skip(slurm.LACK)
    with slurm.running(tmp_path_factory.mktemp("slurm"), {"n0": "", "n1": ""}) as found:
        yield found.environment


@pytest.fixture
def srun(cluster, project):
    """srun(overrides) -> the command under srun on both nodes, begun."""

    def start(*flags, tasks=2, **overrides):
        asked = {"strategy": "ddp", "strategy.ranks": 1, "device": "cpu", "workers": 0, **overrides}
        asked["machine.lock_dir"] = "locks$SLURM_PROCID"  # a node's own, though they are one host
        command = f"exec {sys.executable} src/train.py {' '.join(project.quick(*flags, **asked))}"
        process = subprocess.Popen(
            ["srun", "-N2", f"-n{tasks}", "--exclusive", "bash", "-c", command],
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
    out, _ = process.communicate(timeout=500)
    return process.returncode, " ".join(out.split())


def test_two_nodes_make_one_record_whose_energy_is_that_of_both(srun, project):
    code, said = ended(srun(epochs=2, batch=32, meter="estimate", **{"meter.tdp_w": 65}))
    assert code == 0, said
    record = project.record()
    assert record.is_completed()
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
            if "epochmeter.worker" in line and "epochmeter-node-" in line[-1] and "torchrun" not in " ".join(line):
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
