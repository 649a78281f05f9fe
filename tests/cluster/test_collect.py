"""Results of runs on a cluster's nodes."""

import pytest
from default_jobs import job_keys, job_of

from epochmeter.cluster import collect
from epochmeter.cluster.collect import collect_result
from epochmeter.cluster.submissions import Submission
from epochmeter.config.request import RunRequest
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

    def make(slurm_state, started=True, tracking=UNPUBLISHED, job="17_0", before="", **summary):
        request = RunRequest(job_of(tracking=tracking), {}, ["batch=8"], log.sweep / "0", of_sweep=True)
        record = Record(request.folder)
        record.folder.mkdir(exist_ok=True)
        if started:
            run = {"record_id": "r0", "identity": "id", "rehearsal": [], "energy": {"reason": "no meter here"}}
            record.describe(job_keys(tracking=UNPUBLISHED, epochs=1), {**run, **LIMITS})
        if summary:
            record.write_summary({"metrics": METRICS, "notes": ["a note"], "failure": None, **summary}, "id")
        log.write({0: Submission(job=job, state=slurm_state, node="b1", previous_attempt=before)})
        return request, record

    return make


OUTPUT = "submitit INFO - Starting\nerror: `batch=0` is not valid\n  hint: give 1\nsubmitit INFO - over\n\n"
COMPLETED = {"state": "completed"}
STOPPED = {"state": "killed", "failure": {"kind": "stopped", "message": "stopped by Slurm, which ends job 17"}}
RESUBMITTED = {"job": "18", "before": "r0.0"}
"""Of a job that found an attempt of job 17."""


@pytest.mark.parametrize(
    ("slurm_state", "made", "output", "result", "failure"),
    [
        ("COMPLETED", COMPLETED, None, ("completed", None, False), None),
        ("COMPLETED", {**COMPLETED, **RESUBMITTED}, None, ("completed", None, True), None),
        ("NODE_FAIL", {}, None, ("failed", "node", False), "its node b1 failed (Slurm job 17_0: NODE_FAIL)"),
        ("CANCELLED", {}, None, ("killed", "stopped", False), "it was canceled (Slurm job 17_0: CANCELLED)"),
        ("GONE", {}, None, ("failed", "node", False), "and it wrote no result (Slurm job 17_0: GONE)"),
        ("FAILED", {}, None, ("failed", "killed", False), "without an error message (Slurm job 17_0: FAILED)"),
        ("NODE_FAIL", {**STOPPED, **RESUBMITTED}, None, ("failed", "node", False), "before the run began, its node b1"),
        ("FAILED", {"started": False}, OUTPUT, ("failed", "job", False),
         "error: `batch=0` is not valid hint: give 1 (Slurm job 17_0: FAILED)\n  hint: "),
        ("FAILED", {"started": False}, None, ("failed", "job", False),
         "it ended without a log (Slurm job 17_0: FAILED)\n  hint: "),
        ("CANCELLED", {"started": False}, None, ("killed", "stopped", False), "before the run began, it was canceled"),
        ("BOOT_FAIL", {"started": False}, None, ("failed", "node", False), "before the run began, its node b1 did not"),
    ],
)  # fmt: skip
def test_result_is_that_of_the_record_or_else_of_slurm(
    make_run, log, capsys, slurm_state, made, output, result, failure
):
    request, record = make_run(slurm_state, **made)
    before = record.summary()
    if output:
        (log.folder / "17_0_0_log.out").write_text(output)
    collected = collect_result(request, Terminal())
    assert (collected.state, collected.kind, collected.earlier) == result
    assert collected.failure is None if failure is None else failure in collected.failure
    assert log[0].reported
    assert list(queue.pending_runs(log.sweep.parent)) == []
    is_new = made == {}  # the job has begun its run, but its record has no end
    assert record.summary() == before or is_new
    if is_new:
        assert record.summary()["failure"] == {"kind": result[1], "message": collected.failure}
    if result[0] == "completed":
        notes, state = ([], "skipped") if collected.earlier else (["a note"], "completed")
        assert (collected.metrics, collected.notes, collected.no_energy) == (METRICS, notes, "no meter here")
        assert capsys.readouterr().out == f"run 0 {state} on b1\n"
    assert record.folder.exists() == made.get("started", True)
    assert record.is_completed() == (result[0] == "completed")


def test_job_that_archived_the_previous_attempt_has_started(make_run):
    request, record = make_run("NODE_FAIL", **STOPPED, **RESUBMITTED)
    (record.folder / "summary.json").unlink()
    assert collect_result(request, Terminal()).failure == "its node b1 failed (Slurm job 18: NODE_FAIL)"
    assert record.summary()["failure"]["kind"] == "node"


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
