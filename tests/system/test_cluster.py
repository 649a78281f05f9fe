"""Sweeps with `-m hydra/launcher=slurm`, and runs on two nodes by srun.

On a real Slurm, whose two nodes (nano and agx) are both on this host.
"""

import importlib.util
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import servers
import slurm
from project import ROOT, free_ports, wait_until
from test_measure import RANKED
from watched import epochs, write_run

from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.client import open_store

pytestmark = pytest.mark.system
FEATURES = {"n0": "nano", "n1": "agx"}
LONG = {"epochs": 1000, "batch": 500}
TEN_EPOCHS = {"device": "nano,agx", "epochs": 10, "batch": 500, "tracking": "mlflow"}
LIMIT_S = 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if not slurm.is_available():
        pytest.skip(slurm.REQUIREMENTS)
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    with slurm.running(tmp_path_factory.mktemp("slurm"), FEATURES) as found:
        yield found


@pytest.fixture
def sweep(cluster, project):
    """A project with the cluster: sweep.submit(device="nano,agx") -> the started command."""

    def submit(**overrides):
        arguments = project.stubbed("-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", **overrides)
        # Both nodes are one host: each has its own locks.
        arguments.append("machine.lock_dir=" + str(project.root / "locks") + "-${oc.env:SLURMD_NODENAME,none}")
        return project.start("train", *arguments, **{**cluster.environment, "OMP_NUM_THREADS": "1"})

    project.submit, project.cluster = submit, cluster
    yield project
    cluster.run("scancel", "--user=root")
    project.until(lambda: not cluster.run("squeue", "--noheader"))


@pytest.fixture
def server(tmp_path):
    """The address of an MLflow server with a PostgreSQL database."""
    if not servers.postgresql() or not importlib.util.find_spec("psycopg"):
        pytest.skip(servers.REQUIREMENTS)
    with servers.database() as database, servers.mlflow(tmp_path, database) as url:
        yield url


def result_of(process):
    """Return the exit code and the output."""
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out + (errors or "")


def nodes_of(project):
    """Return the node of each run by its number."""
    (path,) = project.root.glob("multirun/*/slurm/jobs.json")
    return {number: submission.node for number, submission in SubmissionLog(path.parents[1]).entries().items()}


def test_runs_are_measured_on_matching_nodes_and_published_to_one_server(sweep, server):
    keys = {"device": "nano,agx", "tracking": "server", "tracking.uri": server}
    code, output = result_of(sweep.submit(**keys))
    assert code == 0, output
    devices = {int(record.folder.name): record.job()["device"]["name"] for record in sweep.records()}
    assert devices == {0: "nano", 1: "agx"}
    assert {number: FEATURES[node] for number, node in nodes_of(sweep).items()} == devices
    assert all(record.is_completed() for record in sweep.records())
    # The nodes ran with tracking=none; the records have the sweep's tracking keys.
    assert [record.job()["tracking"]["uri"] for record in sweep.records()] == [server, server]
    assert list(queue.pending_runs(sweep.root / "multirun")) == []
    store = open_store(uri=server)
    shown = store.client.search_runs([store.experiment_id])
    statuses = {run.data.tags["epochmeter.device"]: run.info.status for run in shown}
    assert (len(shown), statuses) == (2, {"nano": "FINISHED", "agx": "FINISHED"})
    ids = {record.run()["record_id"] for record in sweep.records()}
    assert {run.data.tags["epochmeter.record_id"] for run in shown} == ids
    assert sweep.shown("status") == [], "the project's own database is unchanged"
    for node, number in (("n0", 0), ("n1", 1)):
        assert f"{node}: [{number + 1}/2] run {number}: device={FEATURES[node]}" in output
        assert f"run {number} completed on {node}" in output
    assert len(re.findall(r"^\d .*completed", output, re.M)) == 2, "the table of the sweep"

    # Rehearsals are checked by their nodes, which would measure the same.
    code, again = result_of(sweep.submit(**keys))
    assert code == 0, again
    assert [f"run {number} skipped on n{number}" in again for number in (0, 1)] == [True, True]
    assert sweep.cluster.run("squeue", "--noheader", "--states=all", "--format=%F").split() == ["1", "2", "3", "4"]
    assert len(store.client.search_runs([store.experiment_id])) == 2


def test_command_finds_the_runs_of_a_killed_one_and_ctrl_c_cancels_them(sweep):
    killed = sweep.submit(device="nano,agx", **LONG)
    sweep.until(lambda: len(sweep.records()) == 2)
    killed.kill()
    killed.wait()
    jobs = sweep.cluster.run("squeue", "--noheader", "--format=%i").split()

    again = sweep.submit(device="nano,agx", **LONG)
    assert again.stdout.readline() == "Runs submitted earlier, not submitted again: 2.\n"
    assert sorted(again.stdout.readline()[:3] for _ in range(2)) == ["n0:", "n1:"]
    assert sweep.cluster.run("squeue", "--noheader", "--format=%i").split() == jobs
    sweep.until(lambda: sum(bool(record.windows()) for record in sweep.records()) == 2, LIMIT_S)

    again.send_signal(signal.SIGINT)
    code, output = result_of(again)
    assert code == 128 + signal.SIGINT
    assert re.search(r"Jobs that are canceled \(scancel --name=epochmeter-\S+\): 2\.", output)
    assert [record.summary()["state"] for record in sweep.records()] == ["killed", "killed"]
    assert [sweep.at_work_in(record.folder) for record in sweep.records()] == [[], []]


def test_live_view_is_shown_from_a_step_that_overlaps_a_job(cluster, tmp_path):
    """Documented in docs/clusters.md: the job has all cores of its node, so that another step must overlap it."""
    write_run(tmp_path / "sweep" / "0", epochs(), summary={"state": "completed"})
    job = cluster.run("sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--wrap=srun sleep 600").strip()
    wait_until(lambda: cluster.run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i").count(".") >= 1)
    watch = [sys.executable, str(ROOT / "src/watch.py"), str(tmp_path / "sweep/0"), "once=true"]
    shown, refused = (
        subprocess.run(
            ["srun", f"--jobid={job}", option, *watch], env=cluster.environment, capture_output=True, text=True
        )
        for option in ("--overlap", "--immediate=2")
    )
    cluster.run("scancel", job)
    assert (shown.returncode, "Bottleneck" in shown.stdout) == (0, True), shown
    assert "busy" in refused.stderr


def test_run_on_a_failed_node_fails_and_is_measured_again(sweep):
    command = sweep.submit(**TEN_EPOCHS)
    sweep.until(lambda: sum(bool(record.windows()) for record in sweep.records()) == 2, LIMIT_S)
    sweep.cluster.stop_node("n1")
    try:
        code, output = result_of(command)
    finally:
        sweep.cluster.start_node("n1")
    assert code == 1, output
    assert "run 0 completed on n0" in output
    lost = sweep.records()[1]
    assert lost.summary()["state"] == "failed"
    assert "its node n1 failed (Slurm job" in lost.summary()["failure"]["message"]
    assert sorted(sweep.shown("status")) == ["FAILED", "FINISHED"]

    code, output = result_of(sweep.submit(**TEN_EPOCHS))
    assert code == 0, output
    assert [record.is_completed() for record in sweep.records()] == [True, True]
    assert re.search(r"^0 .*skipped", output, re.M)


@pytest.fixture
def srun(cluster, project):
    """srun(entry, arguments) -> the command started on both nodes."""

    def start(entry, *arguments):
        # Separate locks, though both nodes are one host.
        command = [sys.executable, f"src/{entry}.py", "machine.lock_dir=locks$SLURM_PROCID", *arguments]
        srun = ["srun", "-N2", "-n2", "--exclusive", "bash", "-c", f"exec {' '.join(command)}"]
        piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**cluster.environment, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        project.started.append(subprocess.Popen(srun, cwd=project.root, env=environment, **piped))
        return project.started[-1]

    return start


@pytest.fixture
def train(srun, project):
    """train(overrides) -> a run with one rank per node."""

    def start(**overrides):
        keys = {"strategy": "ddp", "strategy.ranks": 1, "device": "cpu", "workers": 0, **overrides}
        return srun("train", *(key for key in project.quick(**keys) if "lock_dir" not in key))

    return start


def test_two_nodes_write_one_record_with_the_energy_of_both(train, project):
    code, output = result_of(train(epochs=2, batch=32, meter="estimate", **{"meter.tdp_w": 65}))
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
            if "epochmeter.worker" in line and "epochmeter-run-" in line[-1] and "torchrun" not in " ".join(line):
                yield process


def test_killed_rank_ends_the_run_on_both_nodes(train, project):
    command = train(epochs=1000, batch=32, evaluate="false")
    record = project.until_in_training()
    (rank,) = (process for process in ranks_of_second_node() if process.cwd() == str(project.root))
    folder = Path(rank.cmdline()[-1]).parent
    killed_s = time.monotonic()
    rank.send_signal(signal.SIGKILL)
    code, output = result_of(command)
    shutil.rmtree(folder, ignore_errors=True)  # another run may have removed it
    assert code != 0
    assert time.monotonic() - killed_s < 30
    assert "rank 1 was killed by SIGKILL" in " ".join(output.split())
    assert Record(record.folder).summary()["state"] == "failed"
    assert project.at_work_in(record.folder) == []


def test_sweep_over_an_argument_of_a_script_runs_on_the_nodes(sweep):
    (sweep.root / "own.py").write_text(
        "import sys, torch\n"
        "weight = torch.nn.Parameter(torch.zeros(1))\n"
        "for batch in torch.utils.data.DataLoader(range(64), 8):\n"
        "    torch.optim.SGD([weight], float(sys.argv[1])).step()\n"
    )
    keys = ["device=cpu", "device.slurm.constraint=null", "tracking=none", "warmup_epochs=0", "script.lr=0.1,0.2"]
    keys += ["machine.lock_dir=" + str(sweep.root / "locks") + "-${oc.env:SLURMD_NODENAME,none}"]
    command = ["-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", *keys, "own.py", "{script.lr}"]
    code, output = result_of(sweep.start("measure", *command, **sweep.cluster.environment))
    assert code == 0, output
    assert [record.summary()["state"] for record in sweep.records()] == ["completed"] * 2
    assert [record.job()["script"]["lr"] for record in sweep.records()] == [0.1, 0.2]


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


def start_script(srun, project, script, *keys):
    """Start a script with a rank on each of two nodes."""
    (project.root / "ranked.py").write_text(script)
    (port,) = free_ports(1)
    launcher = f"-m torch.distributed.run --nnodes=2 --node_rank=$SLURM_PROCID --master_port={port} ranked.py"
    return srun("measure", "tracking=none", "sweep.wait_idle=0", *keys, "--", launcher)


def test_script_on_two_nodes_has_one_record_with_the_ranks_and_the_energy_of_both(srun, project):
    code, output = result_of(start_script(srun, project, RANKED, "meter=estimate", "meter.tdp_w=65"))
    assert code == 0, output
    record = project.record()
    assert record.is_completed()
    assert [window["window"] for window in record.windows()] == ["epoch", "val"] * 3
    epochs = [window for window in record.windows() if window["window"] == "epoch"]
    other = Record(record.folder / "nodes" / "n1")
    assert other.is_completed()
    own = [window for window in other.windows() if window["window"] == "epoch"]
    for line, of_other in zip(epochs, own, strict=True):
        first, second = line["of_ranks"]
        metrics, alone = line["metrics"], of_other["metrics"]
        assert (line["ranks"], first["rank"], second["rank"], metrics["epoch/samples"]) == (2, 0, 1, 64)
        assert second["e2e_s"] == pytest.approx(alone["epoch/e2e_s"])
        assert metrics["epoch/e2e_s"] == pytest.approx((first["e2e_s"] + second["e2e_s"]) / 2)
        assert metrics["rank_max/e2e_s"] == max(first["e2e_s"], second["e2e_s"])
        (node,) = line["energy"]["nodes"]
        assert node["node"] == "n1"
        if "epoch/estimated_energy_j" in metrics:  # absent on a busy host
            both = line["energy"]["joules"]["cpu"] + node["joules"]["cpu"]
            assert metrics["epoch/estimated_energy_j"] == pytest.approx(both)
        assert line["rank_steps"] == metrics["epoch/steps"]
    places = record.run()["training"]["places"]
    assert [(place["rank"], place["host"]) for place in places] == [(0, "n0"), (1, "n1")]
    evaluations = [window for window in record.windows() if window["window"] == "val"]
    assert {window["ranks"] for window in evaluations} == {1}  # only the first rank evaluates
    assert all("val/estimated_energy_j" not in window["metrics"] for window in evaluations)


ENDLESS = """
import time, torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000):
    for inputs in torch.utils.data.DataLoader(torch.ones(16, 4), 4):
        model(inputs).sum().backward()
        optimizer.step()
        time.sleep(0.05)
"""


def test_record_of_a_script_stays_and_names_the_node_that_was_killed(srun, project, cluster):
    command = start_script(srun, project, ENDLESS)
    wait_until(lambda: any(len(record.windows()) >= 2 for record in project.records()), LIMIT_S, pause_s=0.2)
    cluster.stop_node("n1")
    try:
        wait_until(lambda: project.record().summary() is not None, 120, pause_s=0.2)
    finally:
        command.kill()
        cluster.start_node("n1")
    record = project.record()
    assert record.summary()["state"] == "failed"
    both = [window for window in record.windows() if window["ranks"] == 2]
    assert len(both) >= 2
    assert all(window["metrics"]["epoch/samples"] == 32 for window in both)
    for window in record.windows()[len(both) :]:
        assert "epoch/samples" not in window["metrics"]
        assert any("n1" in note for note in window["notes"])


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
    sweep.cluster.run("scontrol", "update", f"JobId={job}", "EndTime=now+1")  # a limit has whole minutes
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
