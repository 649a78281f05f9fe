"""Waiting for the jobs of a sweep."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from epochmeter.cluster import submit
from epochmeter.cluster.submissions import Submission
from epochmeter.cluster.submit import RunTask, iter_ended, run_on_cluster
from epochmeter.shared.record import Record

LAUNCHER = {"poll_s": 0.01}


@pytest.fixture(autouse=True)
def _no_file_delay(monkeypatch):
    monkeypatch.setattr(submit, "FILE_VISIBILITY_S", 0.0)


def tasks(count):
    return [RunTask(number, Path(str(number)), (), "cpu", {}, "python3", "d") for number in range(count)]


def submitted(log, *jobs, **fields):
    """Log the jobs of runs 0, 1, ...; return them by run number."""
    log.write({number: Submission(job, "d", **fields) for number, job in enumerate(jobs)})
    return dict(enumerate(jobs))


def ended(awaited, log, limit_s=5.0, lines=None):
    return list(iter_ended(awaited, log, 0.01, ([] if lines is None else lines).append, limit_s))


def test_runs_are_yielded_when_their_jobs_end_with_state_and_node_in_the_log(cluster, log):
    awaited = submitted(log, "17_0", "17_1", "17_2")
    cluster.set_job("17_0", "COMPLETED", "b1")
    cluster.set_job("17_1", "NODE_FAIL", "b2")
    assert (ended(awaited, log), awaited) == ([0, 1, 2], {})
    assert (log[1].state, log[1].node, log[2].state) == ("NODE_FAIL", "b2", "GONE")


def test_start_of_a_run_and_unusual_pending_reasons_are_printed_once(cluster, log):
    lines = []
    cluster.set_job("17_0", "PENDING", reason="Resources")
    for job in ("17_1", "17_2"):
        cluster.set_job(job, "PENDING", reason="PartitionConfig")
    cluster.set_job("17_3", "RUNNING", "b1")
    awaited = submitted(log, "17_0", "17_1", "17_2", "17_3")
    assert ended(awaited, log, limit_s=0.1, lines=lines) == []
    assert lines == ["run 1 is waiting in Slurm: PartitionConfig", "b1: run 3"]
    assert len(awaited) == 4


def test_summary_may_become_visible_after_the_jobs_end(cluster, log, monkeypatch):
    monkeypatch.setattr(submit, "FILE_VISIBILITY_S", 60.0)
    awaited = submitted(log, "18", previous_attempt="r0.0")
    cluster.set_job("18", "COMPLETED")
    assert ended(awaited, log, limit_s=0.1) == []
    record = Record(log.sweep / "0")
    record.folder.mkdir()
    record.describe({}, {"record_id": "r0"})
    record.write_summary({"state": "killed"}, "id")
    assert ended(awaited, log, limit_s=0.1) == [], "the summary is the previous attempt's"
    record.describe({}, {"record_id": "r0", "resumed": [{"epoch": 3}]})
    assert ended(awaited, log) == [0]


def test_slurm_that_does_not_answer_is_queried_again_with_one_warning(cluster, log, monkeypatch):
    lines, error = [], RuntimeError("squeue failed: Unable to contact slurm controller")
    cluster.set_job("17", "COMPLETED")
    monkeypatch.setattr(submit.slurm, "list_jobs", Mock(side_effect=[error, error, error, cluster.jobs]))
    assert ended(submitted(log, "17"), log, lines=lines) == [0]
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
    with pytest.raises(KeyboardInterrupt):
        run_on_cluster(tasks(1), log.sweep, LAUNCHER, pytest.fail)
    assert "jobs may continue" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("stop", "canceled"), [(KeyboardInterrupt(), ["17_1"]), (SystemExit(1), ["17_1"]), (SystemExit(128 + 15), [])]
)
def test_ctrl_c_and_max_failures_cancel_the_other_runs_and_signals_do_not(cluster, log, monkeypatch, stop, canceled):
    cluster.set_job("17_0", "COMPLETED")
    cluster.set_job("17_1", "RUNNING")
    monkeypatch.setattr(submit, "submit_missing", lambda *_: {0: "17_0", 1: "17_1"})
    reported = []

    def report(number):
        reported.append(number)
        raise stop

    with pytest.raises(type(stop)):
        run_on_cluster(tasks(2), log.sweep, LAUNCHER, report)
    assert (reported, cluster.canceled) == ([0], canceled)


def test_completed_runs_are_reported_at_once(cluster, log, monkeypatch):
    monkeypatch.setattr(submit, "submit_missing", lambda *_: {1: "17"})
    cluster.set_job("17", "COMPLETED")
    run_on_cluster(tasks(2), log.sweep, LAUNCHER, (reported := []).append)
    assert reported == [0, 1]
