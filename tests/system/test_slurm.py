"""One run on two nodes under srun, on a real Slurm whose nodes are both on this host."""

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
    """The environment for srun."""
    if not slurm.is_available():
        pytest.skip(slurm.REQUIREMENTS)
    with slurm.running(tmp_path_factory.mktemp("slurm"), {"n0": "", "n1": ""}) as found:
        yield found.environment


@pytest.fixture
def srun(cluster, project):
    """srun(overrides) -> the started command on both nodes."""

    def start(**overrides):
        keys = {"strategy": "ddp", "strategy.ranks": 1, "device": "cpu", "workers": 0, **overrides}
        keys["machine.lock_dir"] = "locks$SLURM_PROCID"  # separate, though both nodes are one host
        command = f"exec {sys.executable} src/train.py {' '.join(project.quick(**keys))}"
        process = subprocess.Popen(
            ["srun", "-N2", "-n2", "--exclusive", "bash", "-c", command],
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


def result_of(process):
    """Return the exit code and the output, in one line."""
    out, _ = process.communicate(timeout=500)
    return process.returncode, " ".join(out.split())


def test_two_nodes_write_one_record_with_the_energy_of_both(srun, project):
    code, output = result_of(srun(epochs=2, batch=32, meter="estimate", **{"meter.tdp_w": 65}))
    assert code == 0, output
    record = project.record()
    assert record.is_completed()
    assert record.run()["training"]["ranks"] == 2
    lines = [line for line in record.windows() if line["window"] == "epoch" and line["energy"]["joules"]]
    for line in lines:
        (other,) = line["energy"]["nodes"]
        assert other["node"] == "n1"
        if "estimated_energy_j" in other["metrics"]:  # absent on a busy host
            both = line["energy"]["joules"]["cpu"] + other["joules"]["cpu"]
            assert line["metrics"]["epoch/estimated_energy_j"] == pytest.approx(both)
        assert line["metrics"]["rank_max/e2e_s"] >= line["metrics"]["epoch/e2e_s"]
    splits = record.run()["dataset"]["splits"]
    assert {line["metrics"]["epoch/samples"] for line in lines} <= {splits["train"] + splits["train"] % 2}


def ranks_of_second_node():
    """Yield the training processes of the second node."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = process.cmdline()
            if "epochmeter.worker" in line and "epochmeter-node-" in line[-1] and "torchrun" not in " ".join(line):
                yield process


def test_killed_rank_ends_the_run_on_both_nodes(srun, project):
    command = srun(epochs=1000, batch=32, evaluate="false")
    record = project.until_in_training()
    (rank,) = (process for process in ranks_of_second_node() if process.cwd() == str(project.root))
    folder = Path(rank.cmdline()[-1]).parent
    killed_s = time.monotonic()
    rank.send_signal(signal.SIGKILL)
    code, output = result_of(command)
    shutil.rmtree(folder)  # kept for its log
    assert code != 0
    assert time.monotonic() - killed_s < 30
    assert "rank 1 was killed by SIGKILL" in output
    assert Record(record.folder).summary()["state"] == "failed"
    assert project.at_work_in(record.folder) == []
