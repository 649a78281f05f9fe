"""The jobs of runs: their command line and options, their submission, each once, and waiting for them."""

import re
import sys
from pathlib import Path
from unittest.mock import Mock

import metadata
import pytest
from cases import case, cases
from default_jobs import job_of
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from stub import executable

from epochmeter.cluster import submit
from epochmeter.cluster.submissions import Submission, SubmissionLog, has_started
from epochmeter.cluster.submit import RunTask, iter_ended_runs, make_run_task, run_on_cluster, submit_missing
from epochmeter.config.installation import ROOT
from epochmeter.config.request import RunRequest
from epochmeter.config.secrets import conceal
from epochmeter.shared.problem import InputError
from epochmeter.shared.record import Record

DEVICES = {path.stem: OmegaConf.load(path) for path in (ROOT / "conf" / "device").glob("*.yaml")}
WAITING = {"poll_s": 0.01}
SBATCH = """#!/bin/sh
n=$(ls {folder}/script* 2>/dev/null | wc -l)
cp "$1" {folder}/script$n
echo "Submitted batch job $((17 + n))"
"""
RUN = {**metadata.RUN, "record_id": "r0", "dataset": {"digest": "of digits"}}
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

    def make(device="nano", number=0, digest="d", dataset=None, nodes=1):
        constraint = {} if device == "cpu" else {"constraint": device}
        options = {"exclusive": True, **constraint, **({"nodes": nodes} if nodes > 1 else {})}
        arguments = (f"device={device}",)
        return RunTask(number, log.sweep / str(number), arguments, device, options, "python3", digest, dataset, nodes)

    return make


@pytest.fixture
def submit_all(cluster, log, launcher, scripts):
    """submit_all(tasks) -> the jobs to wait for; `submit_all.lines` are the printed lines."""

    def call(*tasks):
        call.lines = []
        return submit_missing(tasks, log, launcher, call.lines.append)

    return call


def write_start(folder, **run):
    """Write the record of a run that started."""
    folder.mkdir(parents=True, exist_ok=True)
    Record(folder).describe({}, {**RUN, **run})


def write_end(task, state, **run):
    """Write the record of a run that ended."""
    write_start(task.folder, **run)
    Record(task.folder).write_summary({"state": state}, "of the node")


def options(script):
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))


def test_each_kind_of_node_has_an_array(make_task, submit_all, scripts):
    jobs = submit_all(*(make_task(number=number) for number in range(5)), make_task("agx", number=5))
    assert jobs == {**{number: f"17_{number}" for number in range(5)}, 5: "18"}
    nano, agx = map(options, scripts())
    assert (nano["array"], nano["constraint"], "exclusive" in nano, agx["constraint"]) == ("0-4%5", "nano", True, "agx")
    assert submit_all.lines[:2] == ["Runs for device=nano: 5 in job 17.", "Runs for device=agx: 1 in job 18."]


def test_job_name_has_no_comma_and_depends_on_the_path_of_the_sweep(tmp_path):
    """Slurm would list the jobs of several names, and jobs of another sweep would be canceled."""
    names = {SubmissionLog(tmp_path / sweep).name for sweep in ("a/x", "b/x", "a/x,y", "a/x_y")}
    assert len(names) == 4
    assert all(re.fullmatch(r"epochmeter-[\w.-]+", name) for name in names)


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


def test_step_of_several_nodes_gets_the_signal_before_its_limit(make_task, submit_all, scripts):
    submit_all(make_task(nodes=1), make_task(number=1, nodes=2))
    found = [options(script) for script in scripts()]
    assert [(each["nodes"], each["signal"]) for each in found] == [("1", "B:TERM@90"), ("2", "TERM@90")]


def test_rehearsal_on_several_nodes_is_not_submitted_again(make_task, submit_all, log):
    for number, nodes in enumerate((1, 2)):
        task = make_task(number=number, dataset="of digits", nodes=nodes)
        submit_all(task)
        write_end(task, "completed", rehearsal=["device=nano"])
        log.update(number, reported=True)
        assert bool(submit_all(task)) == (nodes == 1)


@cases(
    case("not reported", end="completed", run={}, reported=False, dataset=None, job="17"),
    case("reported", end="completed", run={}, reported=True, dataset=None, job=None),
    case("same dataset", end="completed", run={}, reported=True, dataset="of digits", job=None),
    case("other dataset", end="completed", run={}, reported=True, dataset="of more digits", job="18"),
    case(
        "rehearsal",
        end="completed",
        run={"rehearsal": ["power_limit=15: no knob"]},
        reported=True,
        dataset="of digits",
        job="18",
    ),
    case("no dataset", end="completed", run={"dataset": None}, reported=True, dataset=None, job="18"),
    case("failed", end="failed", run={}, reported=True, dataset=None, job="18"),
    case("killed", end="killed", run={}, reported=False, dataset=None, job="18"),
)
def test_run_is_submitted_again_unless_it_is_completed(make_task, submit_all, log, end, run, reported, dataset, job):
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


def test_active_job_is_not_submitted_again_and_a_changed_configuration_waits_for_it(
    make_task, cluster, submit_all, scripts
):
    submit_all(make_task(digest="two epochs"))
    cluster.set_job("17", "PENDING")
    assert (submit_all(make_task(digest="two epochs")), len(scripts())) == ({0: "17"}, 1)
    with pytest.raises(ValueError, match="run 0 is still active as job 17"):
        submit_all(make_task(digest="three epochs"))
    cluster.set_job("17", "COMPLETED")
    write_end(make_task(), "completed")
    assert submit_all(make_task(digest="three epochs")) == {0: "18"}


def test_unlogged_jobs_are_canceled_and_nothing_is_submitted_until_they_have_ended(
    make_task, cluster, submit_all, scripts
):
    cluster.set_job("98", "COMPLETED")
    cluster.set_job("99", "RUNNING")
    with pytest.raises(RuntimeError, match=r"(?s)killed while .* canceled: 99\n  hint: .*squeue --name="):
        submit_all(make_task())
    assert (cluster.canceled, scripts()) == (["99"], [])
    assert submit_all(make_task()) == {0: "17"}


def test_refused_array_cancels_the_submitted_ones(make_task, cluster, submit_all, tmp_path):
    refuse = 'case "$(cat $1)" in *constraint=agx*) echo "sbatch: error: no" >&2; exit 1;; esac'
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{refuse}\n"))
    with pytest.raises(RuntimeError, match=r"(?s)Slurm refuses the runs for device=agx: .*sbatch: error: no"):
        submit_all(make_task(), make_task("agx", number=1))
    assert cluster.canceled == ["17"]


def test_missing_submitit_is_an_error_with_a_hint(make_task, submit_all, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(RuntimeError, match="hint: pip install submitit"):
        submit_all(make_task())


@pytest.fixture
def task_of(launcher):
    """task_of("nano", slurm={"gres": "gpu:2"}, batch=8, partition="gpu") -> a task; other keys are the launcher's."""

    def make(device="cpu", slurm=None, folder="/data/multirun/sweep/3", batch=16, overrides=(), count=9, measure=None,
             nodes=None, strategy=None, **keys):  # fmt: skip
        device_keys = {"name": device, "slurm": {**DEVICES[device].slurm, **(slurm or {})}}
        dataset = {"name": "tensors", "layout": "tensors", "count": count}
        others = {"measure": measure, "strategy": strategy}
        others = {key: value for key, value in others.items() if value}
        job = job_of(
            nodes=nodes, device=device_keys, batch=batch, tracking={"tensorboard": True}, dataset=dataset, **others
        )
        usual = [f"device={device}", "tracking=server", "tracking.uri=http://ann:hunter2@host", f"batch={batch}"]
        request = RunRequest(job, {"device": device}, [*usual, *overrides], Path(folder), of_sweep=True)
        return make_run_task(request, {**launcher, **keys}, search_path=[])

    return make


def test_node_gets_the_overrides_and_run_folder_and_neither_publishes_nor_repeats(task_of):
    arguments = dict(argument.split("=", 1) for argument in task_of("nano", batch=8).arguments)
    assert arguments == {
        "device": "nano", "batch": "8", "tracking": "none", "tracking.tensorboard": "true", "sweep.resume": "true",
        "hydra.run.dir": "'/data/multirun/sweep/3'", "hydra.mode": "RUN", "hydra.job.num": "3",
        "hydra/launcher": "basic",
    }  # fmt: skip
    secret = {"command": ["train.py", conceal("hunter2")], "steps_per_window": 500}
    with pytest.raises(InputError, match="the script's command has a secret"):
        task_of("nano", measure=secret)
    measure = {"command": ["train.py", "--lr={script.lr}"], "steps_per_window": 500}
    assert task_of(overrides=["script.lr=1"], measure=measure).arguments[-3:] == ("--", *measure["command"])


def test_submitted_arguments_have_no_secret(task_of):
    """Submitit writes them to a file."""
    assert "hunter2" not in " ".join(task_of().arguments)
    for override in (
        "dataset.make.password=hunter2",
        '+dataset.make.api_key="hunter2"',
        "+dataset.make={password: hunter2, split: train}",
        "dataset.url='http://host/file?token=hunter2'",
    ):
        arguments = task_of(overrides=[override]).arguments
        (argument,) = (text for text in arguments if text.startswith(override.partition("=")[0]))
        (parsed,) = OverridesParser.create().parse_overrides([argument])
        assert "***" in str(parsed.value())
        assert "hunter2" not in argument


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "a=b,c", "back\\slash", "[1]{2}"])
def test_any_folder_name_passes_hydras_grammar(task_of, name):
    (parsed,) = OverridesParser.create().parse_overrides([task_of(folder=f"/data/{name}/0").arguments[-1]])
    assert parsed.value() == f"/data/{name}/0"


def test_options_and_python_are_those_of_launcher_and_device(task_of):
    assert task_of("nano").options == {"constraint": "nano", "exclusive": True, "mem": 0}
    assert task_of(exclusive=False, mem=None).options == {}
    keys = {"gres": "gpu:8", "time": 60, "options": {"hint": "nomultithread"}}
    device_first = {"exclusive": True, "mem": 0, "gres": "gpu:2", "time": 60, "hint": "nomultithread"}
    assert task_of("cuda", slurm={"gres": "gpu:2"}, **keys).options == device_first
    assert task_of().python == sys.executable
    assert task_of(python="/opt/a/bin/python").python == "/opt/a/bin/python"
    task = task_of(slurm={"python": "/opt/b/bin/python"}, python="/opt/a/bin/python")
    assert (task.python, "python" in task.options) == ("/opt/b/bin/python", False)
    for keys in ({"slurm": {"nodelist": ["b1", "b2"]}}, {"options": {"gres": {"gpu": 2}}}):
        with pytest.raises(ValueError, match=r"the option `(nodelist|gres)` of sbatch is a list or"):
            task_of(**keys)
    for key in ("options", "setup"):
        with pytest.raises(ValueError, match=rf"`hydra\.launcher\.{key}=text` is not valid"):
            task_of(**{key: "text"})


DDP = {"name": "ddp", "ranks": 1, "launcher": "torchrun"}


def test_run_has_the_nodes_of_its_key_or_of_the_launchers_options(task_of):
    assert (task_of(nodes=1).nodes, "nodes" in task_of(nodes=1).options) == (1, False)
    for keys in ({"nodes": 2}, {"options": {"nodes": 2}}, {"slurm": {"nodes": 2}}):
        task = task_of(strategy=DDP, **keys)
        assert (task.nodes, task.options["nodes"], task.options["ntasks_per_node"]) == (2, 2, 1)
    assert task_of(nodes=2, measure={"command": ["train.py"], "steps_per_window": 500}).nodes == 2
    assert len({task_of(nodes=count, strategy=DDP).digest for count in (1, 2, 3)}) == 3
    with pytest.raises(InputError, match="`strategy=single` trains on one node, and the run has 2"):
        task_of(nodes=2)
    for keys in ({"nodes": 2, "options": {"nodes": 3}}, {"options": {"nodes": "2-4"}}):
        with pytest.raises(InputError, match=r"(?s)the option `nodes=.*hint: leave the option out"):
            task_of(strategy=DDP, **keys)


def test_digest_covers_what_affects_the_measurement(task_of, monkeypatch):
    digest = task_of("nano").digest
    for keys in ({"batch": 8}, {"slurm": {"gres": "gpu:2"}}, {"mem": "4G"}, {"options": {"hint": "nomultithread"}}):
        assert task_of("nano", **keys).digest != digest, keys
    for keys in ({"account": "a", "setup": ["module load rocm"]}, {"slurm": {"time": 60}}, {"options": {"qos": "a"}}):
        assert task_of("nano", **keys).digest == digest, keys
    monkeypatch.setattr("platform.node", lambda: "another login node")
    assert task_of("nano").digest == digest


@pytest.fixture
def ended(log):
    """ended(awaited) -> the numbers of the runs whose jobs end."""
    return lambda awaited, limit_s=5.0, say=str: list(iter_ended_runs(awaited, log, 0.01, say, limit_s))


def tasks(count):
    return [RunTask(number, Path(str(number)), (), "cpu", {}, "python3", "d") for number in range(count)]


def submitted(log, *jobs, **fields):
    """Log the jobs of runs 0, 1, ...; return them by run number."""
    log.write({number: Submission(job, "d", **fields) for number, job in enumerate(jobs)})
    return dict(enumerate(jobs))


def test_runs_are_yielded_when_their_jobs_end_with_state_and_node_in_the_log(cluster, log, ended, monkeypatch):
    awaited = submitted(log, "17_0", "17_1", "17_2")
    cluster.set_job("17_0", "COMPLETED", "b1")
    cluster.set_job("17_1", "NODE_FAIL", "b2")
    assert (ended(awaited), awaited) == ([0, 1, 2], {})
    assert (log[1].state, log[1].node, log[2].state) == ("NODE_FAIL", "b2", "GONE")
    # Completed runs, which have no job, are reported at once.
    monkeypatch.setattr(submit, "submit_missing", lambda *_: {1: "17_1"})
    run_on_cluster(tasks(2), log.sweep, WAITING, (reported := []).append)
    assert reported == [0, 1]


def test_start_of_a_run_and_unusual_pending_reasons_are_printed_once(cluster, log, ended):
    lines = []
    cluster.set_job("17_0", "PENDING", reason="Resources")
    for job in ("17_1", "17_2"):
        cluster.set_job(job, "PENDING", reason="PartitionConfig")
    cluster.set_job("17_3", "RUNNING", "b1")
    awaited = submitted(log, "17_0", "17_1", "17_2", "17_3")
    assert ended(awaited, limit_s=0.1, say=lines.append) == []
    assert lines == ["run 1 is waiting in Slurm: PartitionConfig", "b1: run 3"]
    assert len(awaited) == 4


def test_summary_may_become_visible_after_the_jobs_end(cluster, log, monkeypatch, ended):
    monkeypatch.setattr(submit, "FILE_VISIBILITY_S", 60.0)
    awaited = submitted(log, "18", previous_attempt="r0.0")
    cluster.set_job("18", "COMPLETED")
    assert ended(awaited, limit_s=0.1) == []
    record = Record(log.sweep / "0")
    record.folder.mkdir()
    record.describe({}, RUN)
    record.write_summary({"state": "killed"}, "id")
    assert ended(awaited, limit_s=0.1) == [], "the summary is the previous attempt's"
    record.describe({}, RESUMED)
    assert ended(awaited) == [0]


def test_slurm_that_does_not_answer_is_queried_again_with_one_warning(cluster, log, monkeypatch, ended):
    lines, error = [], RuntimeError("squeue failed: Unable to contact slurm controller")
    cluster.set_job("17", "COMPLETED")
    monkeypatch.setattr(submit.slurm, "list_jobs", Mock(side_effect=[error, error, error, cluster.jobs]))
    assert ended(submitted(log, "17"), say=lines.append) == [0]
    assert len(lines) == 1


@pytest.mark.parametrize("programs", [["list_jobs", "cancel"], ["cancel"]])
def test_ctrl_c_ends_the_command_if_slurm_does_not_answer(cluster, log, monkeypatch, capsys, programs):
    cluster.set_job("17", "RUNNING")
    submitted(log, "17")
    no_answer = Mock(side_effect=RuntimeError("it did not answer: timed out"))

    def interrupt(*_):
        for name in programs:
            monkeypatch.setattr(submit.slurm, name, no_answer)
        raise KeyboardInterrupt

    monkeypatch.setattr(submit, "submit_missing", interrupt)
    monkeypatch.setattr(submit, "iter_ended_runs", lambda *_: pytest.fail("waits for the jobs"))
    with pytest.raises(KeyboardInterrupt):
        run_on_cluster(tasks(1), log.sweep, WAITING, pytest.fail)
    assert "jobs may continue" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("stop", "canceled", "later"),
    [(KeyboardInterrupt(), ["17_1", "17_2"], [1]), (SystemExit(1), ["17_1", "17_2"], []), (SystemExit(143), [], [])],
)
def test_ctrl_c_and_errors_cancel_the_other_runs_and_signals_do_not(cluster, log, monkeypatch, stop, canceled, later):
    """After Ctrl-C, a run that has started is reported when it has ended."""
    awaited = submitted(log, "17_0", "17_1", "17_2")
    write_start(log.sweep / "1")
    cluster.set_job("17_0", "COMPLETED")
    cluster.set_job("17_1", "RUNNING")
    cluster.set_job("17_2", "PENDING")
    monkeypatch.setattr(submit, "submit_missing", lambda *_: awaited)
    reported = []

    def report(number):
        reported.append(number)
        if number == 0:
            raise stop

    with pytest.raises(type(stop)):
        run_on_cluster(tasks(3), log.sweep, WAITING, report)
    assert (reported, cluster.canceled) == ([0, *later], canceled)
