"""Results of runs on a cluster's nodes."""

import pytest
from default_jobs import job_keys, job_of

from epochmeter.cluster import collect
from epochmeter.cluster.collect import collect_result
from epochmeter.cluster.submissions import Submission
from epochmeter.config.job import RunRequest
from epochmeter.console.console import Terminal
from epochmeter.shared.record import Record
from epochmeter.tracking import queue

UNPUBLISHED = {"name": "none", "tensorboard": False}
"""The tracking keys on a node."""
LIMITS = {"power_limit_w": 15.0, "power_limit_max_w": None}
SERVER = {"name": "server", "experiment": "x", "uri": "http://board:5000", "tensorboard": False}
METRICS = {"steady/e2e_s": 2.0}


@pytest.fixture
def make_run(log):
    """make_run("NODE_FAIL") -> the request of a run whose job has this state in Slurm, and its record as left."""

    def make(slurm_state, started=True, tracking=UNPUBLISHED, entry=None, **summary):
        request = RunRequest(job_of(tracking=tracking), {}, ["batch=8"], log.sweep / "0", of_sweep=True)
        record = Record(request.folder)
        record.folder.mkdir(exist_ok=True)
        if started:
            run = {"record_id": "r0", "identity": "id", "rehearsal": [], "energy": {"reason": "no meter here"}}
            record.describe(job_keys(tracking=UNPUBLISHED, epochs=1), {**run, **LIMITS})
        if summary:
            record.write_summary({"metrics": {}, "notes": [], "failure": None, **summary}, "id")
        log.write({0: Submission(**{"job": "17_0", "state": slurm_state, "node": "b1", **(entry or {})})})
        return request, record

    return make


def test_recorded_result_is_reported(make_run, log, capsys):
    request, _ = make_run("COMPLETED", state="completed", metrics=METRICS, notes=["a note"])
    result = collect_result(request, Terminal())
    found = (result.state, result.metrics, result.notes, result.no_energy, log[0].reported, capsys.readouterr().out)
    assert found == ("completed", METRICS, ["a note"], "no meter here", True, "run 0 completed on b1\n")
    assert list(queue.pending_runs(log.sweep.parent)) == []


@pytest.mark.parametrize(
    ("slurm_state", "state", "kind"),
    [
        ("NODE_FAIL", "failed", "node"),
        ("CANCELLED", "killed", "stopped"),
        ("GONE", "failed", "node"),
        ("FAILED", "failed", "killed"),
    ],
)
def test_record_without_an_end_gets_slurms(make_run, slurm_state, state, kind):
    request, record = make_run(slurm_state)
    result = collect_result(request, Terminal())
    assert (result.state, result.kind) == (state, kind)
    assert result.failure.endswith(f"(Slurm job 17_0: {slurm_state})")
    assert record.summary()["failure"] == {"kind": kind, "message": result.failure}
    assert not record.is_completed()


RESUBMITTED = {"job": "18", "previous_attempt": "r0.0"}


def test_job_that_did_not_start_its_run_keeps_the_previous_attempt_and_one_that_archived_it_has_started(make_run, log):
    failure = {"kind": "stopped", "message": "stopped by Slurm, which ends job 17"}
    request, record = make_run("NODE_FAIL", entry=RESUBMITTED, state="killed", failure=failure)
    result = collect_result(request, Terminal())
    assert (result.state, result.kind) == ("failed", "node")
    assert result.failure.startswith("before the run began, ")
    assert record.summary()["failure"]["message"] == "stopped by Slurm, which ends job 17"
    (record.folder / "summary.json").unlink()
    assert collect_result(request, Terminal()).failure == "its node b1 failed (Slurm job 18: NODE_FAIL)"
    assert record.summary()["failure"]["kind"] == "node"
    assert log[0].reported


def test_completed_run_that_its_node_has_checked_was_completed_earlier(make_run, log, capsys):
    request, _ = make_run("COMPLETED", entry=RESUBMITTED, state="completed", metrics=METRICS)
    result = collect_result(request, Terminal())
    assert (result.state, result.earlier, result.metrics) == ("completed", True, METRICS)
    assert log[0].reported
    assert capsys.readouterr().out == "run 0 skipped on b1\n"


OUTPUT = "submitit INFO - Starting\nerror: `batch=0` is not valid\n  hint: give 1\nsubmitit INFO - over\n\n"


@pytest.mark.parametrize(
    ("slurm_state", "output", "state", "kind", "part"),
    [("FAILED", OUTPUT, "failed", "job", "error: `batch=0` is not valid hint: give 1 "),
     ("FAILED", None, "failed", "job", "without a log"),
     ("CANCELLED", None, "killed", "stopped", "before the run began, it was canceled")],
)  # fmt: skip
def test_job_without_a_record_fails_with_its_log_and_slurm_state(make_run, log, slurm_state, output, state, kind, part):
    request, record = make_run(slurm_state, started=False)
    if output:
        (log.folder / "17_0_0_log.out").write_text(output)
    result = collect_result(request, Terminal())
    assert (result.state, result.kind) == (state, kind)
    assert part in result.failure
    assert f"(Slurm job 17_0: {slurm_state})" in result.failure
    assert ("\n  hint: " in result.failure) == (state == "failed")
    assert not record.folder.exists()


def test_unpublished_run_stays_in_the_queue_with_its_tracking_keys(make_run, log, monkeypatch):
    class Offline:
        def close(self, limit_s, ended):
            return "no answer"

    monkeypatch.setattr(collect, "load_mlflow", lambda timeout_s: None)
    monkeypatch.setattr(collect, "make_tracker", lambda record, **tracking: Offline())
    request, record = make_run("COMPLETED", tracking=SERVER, state="completed")
    assert collect_result(request, Terminal()).publish_error == "no answer"
    assert record.job() == {**job_keys(epochs=1), "tracking": SERVER}
    assert record.run()["identity"] == "id"
    assert [pending.folder for pending in queue.pending_runs(log.sweep.parent)] == [record.folder]
