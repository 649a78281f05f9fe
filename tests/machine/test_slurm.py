"""What Slurm's programs say, read."""

import pytest

from epochmeter.machine import slurm
from epochmeter.machine.slurm import GONE, Job, Machine, company, lacking, machine, serving

BOARDS = [
    Machine("b1", frozenset({"nano", "sd"}), "idle"),
    Machine("b2", frozenset({"nano", "nvme"}), "down*"),
    Machine("b3", frozenset({"agx", "nvme"}), "mixed"),
]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(name, shell) -> one of Slurm's programs, the only ones there are beside the shell's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def made(name, shell):
        (tmp_path / name).write_text(f"#!/bin/sh\n{shell}\n")
        (tmp_path / name).chmod(0o755)

    return made


def test_a_node_has_features_and_a_state():
    assert machine("b1|nano,sd|idle") == BOARDS[0]
    assert machine("n1|(null)|mixed").features == frozenset()


def test_a_node_of_several_partitions_is_one(program):
    program("sinfo", "echo 'b1|nano|idle'; echo 'b1|nano|idle'; echo 'b3|agx|down*'")
    assert [each.name for each in slurm.machines()] == ["b1", "b3"]


@pytest.mark.parametrize("state", ["idle", "mixed", "allocated", "completing"])
def test_a_node_that_takes_jobs_is_in_use(state):
    assert Machine("n1", frozenset(), state).is_in_use


@pytest.mark.parametrize("state", ["down", "down*", "idle*", "drained", "draining", "fail", "maint", "powered_down"])
def test_a_node_that_takes_none_is_not(state):
    assert not Machine("n1", frozenset(), state).is_in_use


def test_jobs_are_known_by_their_ids_and_a_reason_may_hold_the_mark_between_columns(program):
    program("squeue", "echo '17_0|RUNNING|b1|None'; echo '17_1|PENDING||Nodes|required'; echo '9|COMPLETED|b3|None'")
    found = slurm.jobs("epochmeter-x")
    assert found["17_0"] == Job("17_0", "RUNNING", "b1", "None")
    assert [found[each].has_ended for each in ("17_0", "17_1", "9")] == [False, False, True]
    assert found["17_1"].why == "Nodes|required"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY", GONE])
def test_a_job_in_such_a_state_has_ended(state):
    assert Job("1", state).has_ended


@pytest.mark.parametrize("state", ["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"])
def test_a_job_in_such_a_state_has_not(state):
    assert not Job("1", state).has_ended


@pytest.mark.parametrize(
    ("constraint", "missing"),
    [
        ("nano", []),
        ("nano&nvme", []),
        ("orin_nx", ["orin_nx"]),
        ("[nano|tx2]", ["tx2"]),
        ("nano*1&sd", []),
        ("2080ti", ["2080ti"]),
        ("[nano*2&80gb*4]", ["80gb"]),
        ("(3090|agx),sd", ["3090"]),
        (3090, ["3090"]),
    ],
)
def test_the_features_that_no_node_has_are_named(constraint, missing):
    assert lacking(constraint, BOARDS) == missing


def test_the_nodes_that_may_serve_are_those_with_a_feature_or_all():
    assert [each.name for each in serving("nano", BOARDS)] == ["b1", "b2"]
    assert serving(None, BOARDS) == BOARDS


@pytest.mark.parametrize("feature", ["2080ti", "80gb", "3090"])
def test_a_feature_may_begin_with_a_digit(feature):
    there = [Machine("g1", frozenset({feature}), "idle"), Machine("g2", frozenset({"t400"}), "idle")]
    assert lacking(feature, there) == []
    assert [each.name for each in serving(feature, there)] == ["g1"]


def test_without_slurm_it_is_said_which_program_is_lacking(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"no program sinfo on PATH\. Start this on a host of the cluster"):
        slurm.machines()


def test_what_fails_is_told_in_its_own_words(program):
    program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(RuntimeError, match="squeue failed: slurm_load_jobs error: Unable to contact slurm controller"):
        slurm.jobs("x")


def test_what_hangs_is_given_up(program, monkeypatch):
    monkeypatch.setattr(slurm, "PATIENCE_S", 0.2)
    program("squeue", "exec sleep 60")
    with pytest.raises(RuntimeError, match="squeue did not answer"):
        slurm.jobs("x")


def test_outside_of_slurm_and_on_a_node_of_its_own_a_run_has_no_company(program):
    assert company({}) is None
    program("scontrol", "echo 'JobId=17 JobName=x OverSubscribe=NO Contiguous=0'")
    assert company({"SLURM_JOB_ID": "17"}) is None


def test_on_a_node_that_others_may_share_what_it_draws_is_not_one_jobs(program):
    program("scontrol", "echo 'JobId=17 JobName=x OverSubscribe=OK Contiguous=0'")
    assert "job 17 shares its node with others" in company({"SLURM_JOB_ID": "17"})
    program("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "is not known: scontrol failed: Unable to contact" in company({"SLURM_JOB_ID": "17"})


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        ("MaxArraySize            = 4001", 4001),
        ("MaxArraySize            = 4001\nSchedulerParameters     = bf_continue,max_array_tasks=500", 500),
        ("MaxArraySize            = 0", 1),
        ("", 1001),
    ],
)
def test_an_array_has_as_many_jobs_as_slurm_is_told_to_take(program, told, limit):
    program("scontrol", f"echo '{told}'")
    assert slurm.array_limit() == limit


def test_an_array_has_as_many_jobs_as_slurm_takes_by_default_where_it_does_not_say(program):
    program("scontrol", "exit 1")
    assert slurm.array_limit() == 1001


def test_nothing_is_canceled_where_nothing_is_named(program, tmp_path):
    program("scancel", f'echo "$@" > {tmp_path}/asked')
    slurm.cancel([])
    assert not (tmp_path / "asked").exists()
    slurm.cancel(["17_0", "18"])
    assert (tmp_path / "asked").read_text() == "17_0 18\n"
