"""Submission of runs, each once."""

import re
import sys

import pytest
from stub import executable

from epochmeter.cluster.submissions import has_started
from epochmeter.cluster.submit import RunTask, submit_missing
from epochmeter.machine.slurm import SlurmNode
from epochmeter.shared.record import Record

SBATCH = """#!/bin/sh
n=$(ls {folder}/script* 2>/dev/null | wc -l)
cp "$1" {folder}/script$n
echo "Submitted batch job $((17 + n))"
"""
RUN = {"record_id": "r0", "rehearsal": [], "dataset": {"digest": "of digits"}}
RESUMED = {**RUN, "resumed": [{"epoch": 3}]}


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """scripts() -> the scripts that sbatch got, in order; job IDs start at 17."""
    (folder := tmp_path / "bin").mkdir()
    executable(folder / "sbatch", SBATCH.format(folder=folder))
    executable(folder / "srun", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    return lambda: [path.read_text() for path in sorted(folder.glob("script*"))]


@pytest.fixture
def make_task(log):
    """make_task("nano", number=0, ...) -> a run for a node of that kind."""

    def make(device="nano", number=0, digest="d", dataset=None):
        constraint = {} if device == "cpu" else {"constraint": device}
        options = {"exclusive": True, **constraint}
        arguments = (f"device={device}",)
        return RunTask(number, log.sweep / str(number), arguments, device, options, "python3", digest, dataset)

    return make


@pytest.fixture
def submit_all(cluster, log, launcher, scripts):
    """submit_all(tasks) -> the jobs to wait for; `submit_all.lines` are the printed lines."""

    def call(*tasks):
        call.lines = []
        return submit_missing(tasks, log, launcher, call.lines.append)

    return call


def write_end(task, state, **run):
    """Write the record of a run that ended."""
    task.folder.mkdir(parents=True, exist_ok=True)
    Record(task.folder).describe({}, {**RUN, **run})
    Record(task.folder).write_summary({"state": state}, "of the node")


def options(script):
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))


def test_each_kind_of_node_has_an_array_with_one_job_per_node_at_a_time(make_task, cluster, submit_all, scripts):
    cluster.nodes += [SlurmNode("b2", frozenset({"nano"}), "down*"), SlurmNode("b3", frozenset({"agx"}), "idle")]
    jobs = submit_all(*(make_task(number=number) for number in range(5)), make_task("agx", number=5))
    assert jobs == {**{number: f"17_{number}" for number in range(5)}, 5: "18"}
    nano, agx = map(options, scripts())
    assert (nano["array"], nano["constraint"], "exclusive" in nano, agx["constraint"]) == ("0-4%2", "nano", True, "agx")
    of_nano, of_agx, *_ = submit_all.lines
    assert of_nano == "Runs for device=nano: 5 in job 17; usable nodes: 1."
    assert of_agx == "Runs for device=agx: 1 in job 18; usable nodes: 1."
    cluster.array_limit = 2
    assert submit_all(*(make_task(number=number) for number in range(6, 9))) == {6: "19_0", 7: "19_1", 8: "20"}


def test_script_execs_the_command_after_setup_and_gets_a_signal_before_its_limit(
    make_task, submit_all, launcher, scripts
):
    launcher["setup"] = ["module load rocm", "export MIOPEN_DISABLE_CACHE=1"]
    submit_all(make_task())
    (script,) = scripts()
    assert options(script)["signal"] == "B:TERM@90"
    assert "no-requeue" in options(script), "a lost run is reported, not restarted unobserved"
    assert {"time", "wckey"}.isdisjoint(options(script))
    assert re.search(r"^exec env PYTHONPATH=\S+/src\$\{PYTHONPATH:\+:\$PYTHONPATH\} \S+ -u -m submitit", script, re.M)
    assert script.index("module load rocm") < script.index("export MIOPEN") < script.index("exec env")


@pytest.mark.parametrize(
    ("end", "run", "reported", "dataset", "job"),
    [
        ("completed", {}, False, None, "17"),
        ("completed", {}, True, None, None),
        ("completed", {}, True, "of digits", None),
        ("completed", {}, True, "of more digits", "18"),
        ("completed", {"rehearsal": ["power_limit=15: no knob"]}, True, "of digits", "18"),
        ("completed", {"rehearsal": None, "dataset": None}, True, None, "18"),
        ("failed", {}, True, None, "18"),
        ("killed", {}, False, None, "18"),
    ],
    ids=["not reported", "reported", "same dataset", "other dataset", "rehearsal", "unreadable", "failed", "killed"],
)
def test_run_is_submitted_again_unless_it_is_completed_and_needs_no_check_by_its_node(
    make_task, submit_all, log, end, run, reported, dataset, job
):
    task, other = make_task(dataset=dataset), make_task("cpu", number=1)
    submit_all(task)
    write_end(task, end, **run)
    log.update(0, reported=reported)
    assert submit_all(task) == ({0: job} if job else {})
    assert (log[0].earlier, log[0].previous_attempt) == (job is None, "r0.0" if job == "18" else "")
    assert Record(task.folder).is_completed() == (end == "completed")
    assert submit_all(other).keys() == {1}
    if job == "18":
        record = Record(task.folder)
        assert not has_started(record, log[0]), "the end is that of the earlier job"
        record.describe({}, RESUMED)
        assert has_started(record, log[0])


def test_active_job_is_not_submitted_again(make_task, cluster, submit_all, scripts):
    submit_all(make_task())
    cluster.set_job("17", "PENDING")
    assert (submit_all(make_task()), len(scripts())) == ({0: "17"}, 1)


def test_changed_configuration_waits_for_the_active_job(make_task, cluster, submit_all):
    submit_all(make_task(digest="two epochs"))
    cluster.set_job("17", "RUNNING")
    with pytest.raises(ValueError, match="run 0 is still active as job 17"):
        submit_all(make_task(digest="three epochs"))
    cluster.set_job("17", "COMPLETED")
    write_end(make_task(), "completed")
    assert submit_all(make_task(digest="three epochs")) == {0: "18"}


def test_nothing_is_submitted_while_an_unlogged_job_is_active(make_task, cluster, submit_all, scripts):
    """It writes to the folders of runs."""
    cluster.set_job("98", "COMPLETED")
    cluster.set_job("99", "COMPLETING")
    with pytest.raises(RuntimeError, match=r"(?s)killed while it submitted these jobs: 99\n  hint: scancel --name="):
        submit_all(make_task())
    assert scripts() == []
    cluster.set_job("99", "CANCELLED")
    assert submit_all(make_task()) == {0: "17"}


def test_refused_array_cancels_the_submitted_ones(make_task, cluster, submit_all, tmp_path):
    refuse = 'case "$(cat $1)" in *constraint=agx*) echo "sbatch: error: no" >&2; exit 1;; esac'
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{refuse}\n"))
    cluster.nodes.append(SlurmNode("b2", frozenset({"agx"}), "idle"))
    with pytest.raises(RuntimeError, match=r"(?s)Slurm refuses the runs for device=agx: .*sbatch: error: no"):
        submit_all(make_task(), make_task("agx", number=1))
    assert cluster.canceled == ["17"]


def test_missing_submitit_is_an_error_with_a_hint(make_task, submit_all, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(RuntimeError, match="hint: pip install submitit"):
        submit_all(make_task())
