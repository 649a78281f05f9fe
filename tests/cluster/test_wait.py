"""Runs are told of as their jobs end."""

from pathlib import Path

import pytest

from epochmeter.cluster import wait
from epochmeter.cluster.task import RunTask
from epochmeter.cluster.wait import cancel_all, iter_ended, run_on_cluster
from epochmeter.shared.record import Record


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch):
    monkeypatch.setattr(wait, "FILE_VISIBILITY_S", 0.0)


def run(number):
    return RunTask(number, Path(str(number)), (), "cpu", {}, "python3", "d")


def sent(ledger, **jobs):
    numbers = {int(name.removeprefix("run")): job for name, job in jobs.items()}
    ledger.update(
        {number: {"job": job, "digest": "d", "reported": False, "earlier": False} for number, job in numbers.items()}
    )
    return numbers


def awaited_ends(awaited, ledger, limit_s=5.0, said=None):
    return list(iter_ended(awaited, ledger, 0.01, (said if said is not None else []).append, limit_s))


def test_numbers_come_as_jobs_end_with_their_ends_in_the_ledger(cluster, ledger):
    awaited = sent(ledger, run0="17_0", run1="17_1")
    cluster.have("17_0", "COMPLETED", "b1")
    cluster.have("17_1", "NODE_FAIL", "b2")
    assert awaited_ends(awaited, ledger) == [0, 1]
    assert awaited == {}
    assert (ledger[1]["state"], ledger[1]["node"]) == ("NODE_FAIL", "b2")


def test_a_run_that_begins_is_said_once_with_its_node(cluster, ledger):
    said = []
    awaited = sent(ledger, run0="17")
    cluster.have("17", "RUNNING", "b1")
    assert awaited_ends(awaited, ledger, limit_s=0.1, said=said) == []
    assert said == ["b1: run 0"]
    assert awaited == {0: "17"}, "it is still to end"


def test_why_runs_wait_is_said_once_where_it_is_not_but_their_turn(cluster, ledger):
    said = []
    cluster.have("17_0", "PENDING", why="Resources")
    cluster.have("17_1", "PENDING", why="PartitionConfig")
    cluster.have("17_2", "PENDING", why="PartitionConfig")
    awaited_ends(sent(ledger, run0="17_0", run1="17_1", run2="17_2"), ledger, limit_s=0.1, said=said)
    assert said == ["run 1 is waiting in Slurm: PartitionConfig"]


def test_a_job_that_slurm_has_forgotten_has_ended(cluster, ledger):
    assert awaited_ends(sent(ledger, run0="17"), ledger) == [0]
    assert ledger[0]["state"] == "GONE"


def test_what_a_node_has_written_is_given_time_to_be_seen(cluster, ledger, monkeypatch):
    monkeypatch.setattr(wait, "FILE_VISIBILITY_S", 60.0)
    awaited = sent(ledger, run0="17")
    cluster.have("17", "COMPLETED")
    assert awaited_ends(awaited, ledger, limit_s=0.1) == []
    record = Record(ledger.folder.parent / "0")
    record.folder.mkdir()
    record.describe({}, {"record_id": "r0"})
    record.write_summary({"state": "failed"}, "id")
    assert awaited_ends(awaited, ledger) == [0]


def test_the_end_of_the_attempt_before_is_not_what_is_waited_for(cluster, ledger, monkeypatch):
    monkeypatch.setattr(wait, "FILE_VISIBILITY_S", 60.0)
    awaited = sent(ledger, run0="18")
    record = Record(ledger.folder.parent / "0")
    record.folder.mkdir()
    record.describe({}, {"record_id": "r0"})
    record.write_summary({"state": "killed"}, "id")
    ledger.update({0: {"previous_attempt": "r0.0"}})
    cluster.have("18", "COMPLETED")
    assert awaited_ends(awaited, ledger, limit_s=0.1) == []
    record.describe({}, {"record_id": "r0", "resumed": [{"epoch": 3}]})
    assert awaited_ends(awaited, ledger) == [0]


def test_a_slurm_that_does_not_answer_is_waited_for_and_told_of_once(cluster, ledger, monkeypatch):
    asked = []

    def away(name):
        asked.append(name)
        if len(asked) < 4:
            raise RuntimeError("squeue failed: Unable to contact slurm controller")
        return cluster.jobs

    said = []
    monkeypatch.setattr(wait.slurm, "list_jobs", away)
    cluster.have("17", "COMPLETED")
    assert awaited_ends(sent(ledger, run0="17"), ledger, said=said) == [0]
    assert len(said) == 1
    assert "Unable to contact slurm controller. The jobs continue" in said[0]


def test_what_has_not_ended_is_canceled_after_saying_so(cluster, ledger):
    said = []
    cluster.have("17_0", "RUNNING")
    cluster.have("17_1", "PENDING")
    cluster.have("16", "COMPLETED")
    cancel_all(ledger, said.append)
    assert cluster.canceled == ["17_0", "17_1"]
    assert said[0].startswith("Canceling 2 jobs (scancel --name=epochmeter-sweep). To resume, ")


def away(program):
    def ask(*_):
        raise RuntimeError(f"{program} did not answer: timed out")

    return ask


def test_where_slurm_does_not_tell_what_has_ended_all_is_canceled_that_no_end_was_told_of(cluster, ledger, monkeypatch):
    said = []
    sent(ledger, run0="17_0", run1="17_1")
    ledger.update({0: {"reported": True}})
    monkeypatch.setattr(wait.slurm, "list_jobs", away("squeue"))
    assert not cancel_all(ledger, said.append), "how it ends cannot be waited for"
    assert cluster.canceled == ["17_1"]
    assert said[0] == "squeue did not answer: timed out."
    assert said[1].startswith("Canceling 1 job ")


@pytest.mark.parametrize("programs", [["list_jobs", "cancel"], ["cancel"]])
def test_ctrl_c_goes_on_where_slurm_does_not_answer_and_says_what_is_left_to_do(
    cluster, ledger, monkeypatch, capsys, programs
):
    cluster.have("17", "RUNNING")
    sent(ledger, run0="17")

    def stopped(*_):
        for name in programs:
            monkeypatch.setattr(wait.slurm, name, away(name))
        raise KeyboardInterrupt

    monkeypatch.setattr(wait, "submit_missing", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_on_cluster([run(0)], ledger.folder.parent, {"poll_s": 0.01}, pytest.fail, pytest.fail)
    assert "1 job may continue hint: once Slurm answers: scancel --name=epochmeter-sweep" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.fixture
def under_way(cluster, ledger, monkeypatch):
    """A sweep of two runs of which the first ends at once; under_way(stop) -> what was told before that stopped it."""

    def carried(stop):
        cluster.have("17_0", "COMPLETED")
        cluster.have("17_1", "RUNNING")
        monkeypatch.setattr(wait, "submit_missing", lambda *_: {0: "17_0", 1: "17_1"})
        told = []

        def tell(number):
            told.append(number)
            if len(told) == 1:
                raise stop

        with pytest.raises(type(stop)):
            run_on_cluster([run(0), run(1)], ledger.folder.parent, {"poll_s": 0.01}, pytest.fail, tell)
        return told

    return carried


def test_ctrl_c_cancels_the_rest(under_way, cluster):
    assert under_way(KeyboardInterrupt()) == [0]
    assert cluster.canceled == ["17_1"]


def test_a_sweep_that_is_to_end_cancels_the_rest(under_way, cluster):
    under_way(SystemExit(1))
    assert cluster.canceled == ["17_1"]


def test_a_signal_leaves_the_rest_to_go_on(under_way, cluster, capsys):
    under_way(SystemExit(128 + 15))
    assert cluster.canceled == []
    assert "left in Slurm: 1 job" in capsys.readouterr().out


def test_what_was_completed_before_is_told_of_at_once(cluster, ledger, monkeypatch):
    monkeypatch.setattr(wait, "submit_missing", lambda *_: {1: "17"})
    cluster.have("17", "COMPLETED")
    told = []
    run_on_cluster([run(0), run(1)], ledger.folder.parent, {"poll_s": 0.01}, pytest.fail, told.append)
    assert told == [0, 1]


def test_what_failed_while_no_one_waited_is_learned_and_then_told_of_as_the_next_attempt_ends(
    cluster, ledger, monkeypatch
):
    sent(ledger, run0="17")
    cluster.have("17", "NODE_FAIL", "b2")
    cluster.have("18", "COMPLETED")
    learned, told = [], []

    def taken_up(errands, ledger, launcher, settle, say):
        settle({0: "17"})
        assert learned == [(0, "NODE_FAIL", "b2")]
        return sent(ledger, run0="18")

    def learn(number):
        learned.append((number, ledger[number]["state"], ledger[number]["node"]))

    monkeypatch.setattr(wait, "submit_missing", taken_up)
    run_on_cluster([run(0)], ledger.folder.parent, {"poll_s": 0.01}, learn, told.append)
    assert (told, ledger[0]["state"]) == ([0], "COMPLETED")
