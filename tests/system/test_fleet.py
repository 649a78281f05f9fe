"""`-m hydra/launcher=slurm` on a real Slurm of two nodes, both on this host: one is a nano, the other an agx."""

import importlib.util
import json
import re
import signal

import pytest
import servers
import slurm

from epochmeter.tracking import queue
from epochmeter.tracking.load import load_runs

pytestmark = pytest.mark.system
KINDS = {"n0": "nano", "n1": "agx"}
LONG = {"epochs": 1000, "batch": 32, "evaluate": "false"}
LIMIT_S = 500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if not slurm.is_here():
        pytest.skip(slurm.LACK)
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    with slurm.running(tmp_path_factory.mktemp("slurm"), KINDS) as found:
        yield found


@pytest.fixture
def fleet(cluster, project):
    """A project whose sweeps go to that cluster: fleet.start(device="nano,agx") -> the command, begun."""

    def start(**overrides):
        asked = project.quick("-m", "hydra/launcher=slurm", "hydra.launcher.poll_s=0.5", workers=0, **overrides)
        # Two nodes, though they are one host: each has locks of its own.
        asked.append("machine.lock_dir=" + str(project.root / "locks") + "-${oc.env:SLURMD_NODENAME,none}")
        return project.start("train", *asked, **{**cluster.environment, "OMP_NUM_THREADS": "1"})

    project.send, project.cluster = start, cluster
    yield project
    cluster.ask("scancel", "--user=root")
    slurm.until(lambda: not cluster.ask("squeue", "--noheader"))


@pytest.fixture
def server(tmp_path):
    """The address of an MLflow server, with a PostgreSQL behind it."""
    if not servers.postgresql() or not importlib.util.find_spec("psycopg"):
        pytest.skip(servers.LACK)
    with servers.database() as database, servers.mlflow(tmp_path, database) as url:
        yield url


def said(process):
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out + errors


def nodes_of(project):
    """The node that each run was made on, by the run's number."""
    (ledger,) = project.root.glob("multirun/*/slurm/jobs.json")
    return {int(number): entry["node"] for number, entry in json.loads(ledger.read_text()).items()}


def test_each_run_goes_to_a_node_of_its_kind_and_all_are_shown_by_one_server(fleet, server):
    how = {"device": "nano,agx", "tracking": "server", "tracking.uri": server}
    code, told = said(fleet.send(**how))
    assert code == 0, told
    devices = {int(record.folder.name): record.job()["device"]["name"] for record in fleet.records()}
    assert devices == {0: "nano", 1: "agx"}
    assert {number: KINDS[node] for number, node in nodes_of(fleet).items()} == devices
    assert all(record.is_completed() for record in fleet.records())
    # The nodes were told to show it nowhere; whoever publishes it once more is to find where it belongs.
    assert [record.job()["tracking"]["uri"] for record in fleet.records()] == [server, server]
    assert list(queue.pending_runs(fleet.root / "multirun")) == []
    shown = load_runs(server)
    statuses = {run["params"]["device"]: run["status"] for run in shown}
    assert (len(shown), statuses) == (2, {"nano": "FINISHED", "agx": "FINISHED"})
    assert {run["tags"]["epochmeter.record_id"] for run in shown} == {
        each.run()["record_id"] for each in fleet.records()
    }
    assert fleet.shown("status") == [], "this project's own database is left alone"
    for node, number in (("n0", 0), ("n1", 1)):
        assert f"{node}: [{number + 1}/2] run {number}: device={KINDS[node]}" in told
        assert f"run {number} completed on {node}" in told
    assert len(re.findall(r"^\d .*completed", told, re.M)) == 2, "the table of the sweep"

    # They were rehearsed, this being no board: their nodes are asked again, and would measure the same.
    code, again = said(fleet.send(**how))
    assert code == 0, again
    assert [f"run {number} skipped on n{number}" in again for number in (0, 1)] == [True, True]
    assert fleet.cluster.ask("squeue", "--noheader", "--states=all", "--format=%F").split() == ["1", "2", "3", "4"]
    assert len(load_runs(server)) == 2


def test_what_was_measured_as_it_was_asked_for_is_not_sent_again(fleet):
    assert said(fleet.send(device="cpu"))[0] == 0
    before = fleet.cluster.ask("squeue", "--noheader", "--states=all", "--format=%F").split()
    code, again = said(fleet.send(device="cpu"))
    assert (code, len(re.findall(r"^\d .*skipped", again, re.MULTILINE))) == (0, 1), again
    assert fleet.cluster.ask("squeue", "--noheader", "--states=all", "--format=%F").split() == before


def test_a_device_that_no_node_is_fails_before_anything_is_sent(fleet):
    code, told = said(fleet.send(device="nano,orin_nx"))
    assert code == 1
    assert "device=orin_nx needs a node with the feature orin_nx, and no node has it: 2 nodes" in told
    assert "their features: agx, nano" in told
    assert "hint: Give its nodes the feature in slurm.conf (Features=orin_nx)" in told
    assert fleet.records() == []
    assert not fleet.cluster.ask("squeue", "--noheader")


def test_what_slurm_refuses_is_told_in_its_words_and_nothing_stays_sent(fleet):
    code, told = said(fleet.send(device="nano,agx", **{"hydra.launcher.options": "{reservation: nobodys}"}))
    assert code == 1
    assert "Slurm refuses the runs for device=nano: " in told
    assert not fleet.cluster.ask("squeue", "--noheader")


def test_a_sender_that_is_killed_finds_its_runs_again_and_ctrl_c_cancels_them(fleet):
    killed = fleet.send(device="nano,agx", **LONG)
    fleet.until(lambda: len(fleet.records()) == 2)
    killed.kill()
    killed.wait()
    jobs = fleet.cluster.ask("squeue", "--noheader", "--format=%i").split()

    again = fleet.send(device="nano,agx", **LONG)
    while (line := again.stdout.readline()).startswith("Composing"):
        pass  # a slow machine shows this stage
    assert line == "2 runs submitted earlier: not submitted again.\n"
    assert sorted(again.stdout.readline()[:3] for _ in range(2)) == ["n0:", "n1:"]
    assert fleet.cluster.ask("squeue", "--noheader", "--format=%i").split() == jobs
    fleet.until(lambda: sum(bool(record.windows()) for record in fleet.records()) == 2, LIMIT_S)

    again.send_signal(signal.SIGINT)
    code, told = said(again)
    assert code == 128 + signal.SIGINT
    assert "Canceling 2 jobs (scancel --name=epochmeter-" in told
    assert [record.summary()["state"] for record in fleet.records()] == ["killed", "killed"]
    assert [fleet.at_work_in(record.folder) for record in fleet.records()] == [[], []]


def test_a_node_that_drops_out_ends_its_run_as_failed_which_is_then_measured_anew(fleet):
    begun = fleet.send(device="nano,agx", epochs=10, batch=32, evaluate="false", tracking="mlflow")
    fleet.until(lambda: sum(bool(record.windows()) for record in fleet.records()) == 2, LIMIT_S)
    fleet.cluster.drop_out("n1")
    try:
        code, told = said(begun)
    finally:
        fleet.cluster.come_back("n1")
    assert code == 1, told
    assert "run 0 completed on n0" in told
    lost = fleet.records()[1]
    assert lost.summary()["state"] == "failed"
    assert "its node n1 failed (Slurm job" in lost.summary()["failure"]["message"]
    assert sorted(fleet.shown("status")) == ["FAILED", "FINISHED"]

    code, told = said(fleet.send(device="nano,agx", epochs=10, batch=32, evaluate="false", tracking="mlflow"))
    assert code == 0, told
    assert [record.is_completed() for record in fleet.records()] == [True, True]
    assert re.search(r"^0 .*skipped", told, re.M)


def test_a_shared_node_meters_no_energy_that_is_not_its_jobs_alone(fleet):
    shared = {"hydra.launcher.exclusive": "false", "hydra.launcher.mem": "null"}
    code, told = said(fleet.send(device="cpu", meter="estimate", **{"meter.tdp_w": 65, **shared}))
    assert code == 0, told
    energy = fleet.record().run()["energy"]
    assert energy["source"] == "none"
    assert "shares its node" in energy["reason"]
    assert "hydra.launcher.exclusive=true" in told
