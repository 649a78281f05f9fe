"""What is sent, and what is not sent twice."""

import re

import pytest

from epochmeter.cluster import submit
from epochmeter.cluster.submissions import has_started
from epochmeter.cluster.submit import submission_error, submit_missing
from epochmeter.cluster.task import RunTask
from epochmeter.machine.slurm import SlurmNode
from epochmeter.results.run_status import recorded_status as said_of
from epochmeter.shared.record import CHECKPOINT, Record

SBATCH = """#!/bin/sh
n=$(ls {folder}/script* 2>/dev/null | wc -l)
cp "$1" {folder}/script$n
echo "Submitted batch job $((17 + n))"
"""


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """scripts() -> what sbatch was given, in order; Slurm takes it all, from job 17 on."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(SBATCH.format(folder=folder))
    (folder / "srun").write_text("#!/bin/sh\n")
    for name in ("sbatch", "srun"):
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    pytest.importorskip("submitit", reason="needs submitit: pip install submitit")
    return lambda: [path.read_text() for path in sorted(folder.glob("script*"))]


@pytest.fixture
def asked(ledger):
    """asked("device", number=0, ...) -> a run for a node of that kind."""

    def made(device="nano", number=0, digest="d", dataset=None):
        constraint = {} if device == "cpu" else {"constraint": device}
        folder = ledger.folder.parent / str(number)
        options = {"exclusive": True, **constraint}
        return RunTask(number, folder, (f"device={device}",), device, options, "python3", digest, dataset)

    return made


@pytest.fixture
def take(cluster, ledger, launcher):
    """take(errands) -> the jobs to wait for, and what was said; take.settled has what ended while no one waited, each
    with the state in its record then."""

    def settle(over):
        folder = ledger.folder.parent
        up.settled += [(number, job, said_of(Record(folder / str(number)))) for number, job in over.items()]
        ledger.update({number: {"reported": True} for number in over})

    def up(*errands, said=None):
        said = [] if said is None else said
        return submit_missing(errands, ledger, launcher, settle, said.append), said

    up.settled = []
    return up


RUN = {"record_id": "r0", "rehearsal": [], "dataset": {"digest": "of digits"}}


def left(errand, state, **run):
    """A record as a run leaves it that ended so."""
    errand.folder.mkdir(parents=True, exist_ok=True)
    Record(errand.folder).describe({}, {**RUN, **run})
    Record(errand.folder).write_summary({"state": state}, "of the node")


def whole(errand, **run):
    left(errand, "completed", **run)


def options(script):
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))


def test_runs_of_a_kind_are_an_array_of_which_each_node_makes_one_at_a_time(asked, cluster, take, scripts):
    cluster.machines.append(SlurmNode("b2", frozenset({"nano"}), "idle"))
    jobs, said = take(*(asked(number=n) for n in range(5)))
    (script,) = scripts()
    found = options(script)
    assert jobs == {number: f"17_{number}" for number in range(5)}
    assert (found["array"], found["constraint"]) == ("0-4%2", "nano")
    assert "exclusive" in found
    assert said[0] == "5 runs for device=nano: job 17, on 2 nodes."


def test_each_kind_of_node_has_an_array_of_its_own(asked, cluster, take, scripts):
    cluster.machines.append(SlurmNode("b2", frozenset({"agx"}), "down*"))
    nano, agx = asked(number=0), asked("agx", number=1)
    jobs, said = take(nano, agx)
    assert jobs == {0: "17", 1: "18"}
    assert [options(script)["constraint"] for script in scripts()] == ["nano", "agx"]
    assert said[1] == "1 run for device=agx: job 18, on 1 node, of which b2 is down*."


def test_a_job_becomes_the_command_so_that_signals_reach_it_before_its_time_is_up(asked, take, scripts):
    take(asked())
    (script,) = scripts()
    found = options(script)
    assert found["signal"] == "B:TERM@90"
    assert "no-requeue" in found, "a run that was lost is told of rather than begun again unseen"
    assert {"time", "wckey"}.isdisjoint(found), "what is not asked for is left to Slurm"
    assert re.search(r"^exec env PYTHONPATH=\S+/src\$\{PYTHONPATH:\+:\$PYTHONPATH\} \S+ -u -m submitit", script, re.M)


def test_lines_of_shell_are_run_before_it(asked, take, launcher, scripts):
    launcher["setup"] = ["module load rocm", "export MIOPEN_DISABLE_CACHE=1"]
    take(asked())
    (script,) = scripts()
    assert script.index("module load rocm") < script.index("export MIOPEN") < script.index("exec env")


def test_more_runs_than_an_array_may_have_are_several(asked, cluster, take, scripts):
    cluster.array_limit = 2
    jobs, _ = take(*(asked(number=n) for n in range(3)))
    assert jobs == {0: "17_0", 1: "17_1", 2: "18"}


def test_what_is_completed_and_was_told_of_is_not_sent_again(asked, take, ledger, scripts):
    first, second = asked(number=0), asked(number=1)
    take(first, second)
    whole(first)
    ledger.update({0: {"reported": True}})
    assert take(first, second)[0] == {1: "18"}
    assert (ledger[0]["earlier"], ledger[1]["earlier"]) == (True, False)


@pytest.mark.parametrize(
    ("known", "run"),
    [
        ("of digits", {"rehearsal": ["power_limit=15: no knob"]}),
        ("of more digits", {}),
        (None, {"rehearsal": None, "dataset": None}),
    ],
    ids=["rehearsed", "another dataset", "not to be read"],
)
def test_what_is_completed_but_perhaps_not_what_would_be_measured_now_is_for_its_node_to_judge(
    asked, take, ledger, scripts, known, run
):
    take(asked(dataset="of digits"))
    whole(asked(), **run)
    ledger.update({0: {"reported": True}})
    assert take(asked(dataset=known))[0] == {0: "18"}
    assert Record(asked().folder).is_completed(), "or its node had nothing to judge"
    assert ledger[0]["previous_attempt"] == "r0.0"
    assert take.settled == []


@pytest.mark.parametrize("known", [None, "of digits"])
def test_what_is_completed_stands_where_its_dataset_is_what_it_was_or_is_not_known_here(
    asked, take, ledger, scripts, known
):
    take(asked(dataset=known))
    whole(asked())
    ledger.update({0: {"reported": True}})
    assert take(asked(dataset=known))[0] == {}


def test_what_was_completed_while_no_one_waited_is_still_to_be_told_of(asked, take, scripts):
    run = asked()
    take(run)
    whole(run)
    assert take(run)[0] == {0: "17"}
    assert len(scripts()) == 1


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_job_under_way_is_waited_for_and_not_sent_again(asked, cluster, take, scripts, state):
    run = asked()
    take(run)
    cluster.have("17", state)
    jobs, said = take(run)
    assert jobs == {0: "17"}
    assert said == ["1 run submitted earlier: not submitted again."]
    assert len(scripts()) == 1


def test_a_run_that_failed_is_sent_again_and_what_it_left_is_set_aside(asked, cluster, take, ledger, scripts):
    run = asked()
    take(run)
    cluster.have("17", "FAILED")
    left(run, "failed")
    ledger.update({0: {"reported": True}})
    assert take(run)[0] == {0: "18"}
    assert not (run.folder / "summary.json").exists()
    assert (run.folder / "attempt1" / "summary.json").exists()
    assert take.settled == []


def test_a_run_that_may_go_on_keeps_what_it_goes_on_from_and_its_end_is_not_that_of_the_next_job(
    asked, cluster, take, ledger, scripts
):
    run = asked()
    take(run)
    cluster.have("17", "FAILED")
    left(run, "killed")
    (run.folder / CHECKPOINT).write_bytes(b"weights")
    ledger.update({0: {"reported": True}})
    assert take(run)[0] == {0: "18"}
    assert (run.folder / CHECKPOINT).exists()
    assert not has_started(Record(run.folder), ledger[0])
    Record(run.folder).describe({}, {**RUN, "resumed": [{"epoch": 3}]})
    assert has_started(Record(run.folder), ledger[0])


def test_a_job_that_ended_before_it_began_while_no_one_waited_has_nothing_to_tell_and_one_that_had_begun_has(
    asked, cluster, take, ledger, scripts
):
    run = asked()
    take(run)
    left(run, "killed")
    (run.folder / CHECKPOINT).write_bytes(b"weights")
    ledger.update({0: {"reported": True}})
    take(run)
    cluster.have("18", "NODE_FAIL")
    assert take(run)[0] == {0: "19"}
    assert take.settled == []
    cluster.have("19", "NODE_FAIL")
    Record(run.folder).describe({}, {**RUN, "resumed": [{"epoch": 3}]})
    assert take(run)[0] == {0: "20"}
    assert [(number, job) for number, job, _ in take.settled] == [(0, "19")]


def test_what_another_partition_has_begun_is_not_gone_on_with(asked, take, ledger, scripts):
    take(asked(digest="of one"))
    left(asked(), "killed")
    (asked().folder / CHECKPOINT).write_bytes(b"weights")
    ledger.update({0: {"reported": True}})
    take(asked(digest="of another"))
    assert Record(asked().folder).attempts()
    assert not (asked().folder / CHECKPOINT).exists()


@pytest.mark.parametrize("digest", ["d", "of another default"])
def test_what_failed_while_no_one_waited_is_told_of_before_it_is_sent_again(asked, cluster, take, scripts, digest):
    take(asked())
    cluster.have("17", "FAILED")
    left(asked(), "failed")
    jobs, said = take(asked(digest=digest))
    assert take.settled == [(0, "17", "failed")], "its record is still its own"
    assert jobs == {0: "18"}
    assert said[0] == "1 run submitted earlier ended meanwhile: reported now and submitted again."


def test_a_run_whose_job_was_canceled_before_it_began_is_sent_again_with_nothing_to_tell(asked, cluster, take, scripts):
    take(asked())
    cluster.have("17", "CANCELLED")
    assert take(asked())[0] == {0: "18"}
    assert take.settled == []


def test_a_changed_default_is_measured_anew_but_never_beside_what_is_under_way(asked, cluster, take, scripts):
    take(asked(digest="two epochs"))
    cluster.have("17", "RUNNING")
    with pytest.raises(ValueError, match="run 0 is still active as job 17, submitted before a default was changed"):
        take(asked(digest="three epochs"))
    cluster.have("17", "COMPLETED")
    whole(asked(digest="two epochs"))
    assert take(asked(digest="three epochs"))[0] == {0: "18"}


def test_a_job_that_was_sent_but_never_written_down_is_canceled(asked, cluster, take, scripts):
    cluster.have("99_0", "PENDING")
    cluster.have("98", "COMPLETED")
    jobs, said = take(asked())
    assert (jobs, cluster.canceled) == ({0: "17"}, ["99_0"])
    assert said[0] == "1 job of an earlier command that was killed while submitting: canceled."


def test_a_canceled_job_has_ended_before_its_run_is_sent_again(asked, cluster, take, scripts, monkeypatch):
    cluster.have("99", "RUNNING")
    cluster.canceled_is = "COMPLETING"
    asleep = []

    def sleep(seconds):
        asleep.append(len(scripts()))
        if len(asleep) == 3:
            cluster.have("99", "CANCELLED")

    monkeypatch.setattr(submit.time, "sleep", sleep)
    assert take(asked())[0] == {0: "17"}
    assert asleep == [0, 0, 0]


def test_beside_a_canceled_job_that_does_not_end_nothing_is_sent(asked, cluster, take, scripts, monkeypatch):
    monkeypatch.setattr(submit, "CANCEL_LIMIT_S", 0.0)
    cluster.have("99", "RUNNING")
    cluster.canceled_is = "COMPLETING"
    with pytest.raises(RuntimeError, match=r"did not end: 99 is COMPLETING\n.*squeue --name=epochmeter-sweep"):
        take(asked())
    assert scripts() == []


def test_a_kind_that_no_node_is_keeps_all_from_being_sent(asked, take, scripts):
    with pytest.raises(ValueError, match="device=nx needs a node with the feature nx"):
        take(asked(), asked("nx", number=1))
    assert scripts() == []


def test_what_slurm_refuses_is_told_and_what_it_took_before_is_canceled(asked, cluster, take, scripts, tmp_path):
    refuses = 'case "$(cat $1)" in *constraint=agx*) echo "sbatch: error: no" >&2; exit 1;; esac'
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(sbatch.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{refuses}\n"))
    cluster.machines.append(SlurmNode("b2", frozenset({"agx"}), "idle"))
    with pytest.raises(RuntimeError, match=r"(?s)Slurm refuses the runs for device=agx: .*sbatch: error: no"):
        take(asked(), asked("agx", number=1))
    assert cluster.canceled == ["17"]


@pytest.mark.parametrize(
    "why",
    [
        "AssocMaxSubmitJobLimit",
        "QOSMaxSubmitJobPerUserLimit",
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_where_slurm_takes_no_more_jobs_at_once_the_way_out_is_told(why):
    told = submission_error(f"sbatch: error: {why}")
    assert told.startswith(f"sbatch: error: {why}\n  hint: ")
    assert "`hydra.launcher.account=` or `hydra.launcher.qos=`, or split the sweep" in told


def test_what_is_stopped_while_it_sends_ends_by_that_though_slurm_does_not_answer(
    asked, cluster, take, scripts, monkeypatch
):
    cluster.array_limit = 1
    said = []

    def away(job_ids):
        raise RuntimeError("scancel did not answer: timed out")

    def stop(array, *_):
        if array[0].number:
            raise KeyboardInterrupt
        return ["17"]

    monkeypatch.setattr(submit, "submit_array", stop)
    monkeypatch.setattr(submit.slurm, "cancel", away)
    with pytest.raises(KeyboardInterrupt):
        take(asked(number=0), asked(number=1), said=said)
    assert said[-1] == (
        "warning: scancel did not answer: timed out. 1 job may continue\n"
        "  hint: once Slurm answers: scancel --name=epochmeter-sweep; or run the same command again"
    )


def test_without_submitit_it_is_said_where_it_is_needed(asked, take, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "submitit", None)
    with pytest.raises(RuntimeError, match="submitit, which is not installed\\n  hint: pip install submitit"):
        take(asked())
