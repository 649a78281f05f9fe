"""Results of runs on a cluster's nodes."""

import pytest
from cases import case, cases
from default_jobs import job_keys, job_of
from metadata import RUN

from epochmeter.cluster import collect
from epochmeter.cluster.collect import collect_result
from epochmeter.cluster.submissions import Submission
from epochmeter.config import errors
from epochmeter.config.request import RunRequest
from epochmeter.console.console import Terminal
from epochmeter.shared.problem import InputError, Place, Problem, read_problem
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.export_process import Exported

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
            run = {**RUN, "record_id": "r0", "energy": {"reason": "no meter here"}}
            record.describe(job_keys(tracking=UNPUBLISHED, epochs=1), {**run, **LIMITS})
        if summary:
            record.write_summary({"metrics": METRICS, "notes": ["a note"], "failure": None, **summary}, "id")
        log.write({0: Submission(job=job, state=slurm_state, node="b1", previous_attempt=before)})
        return request, record

    return make


OUTPUT = "submitit INFO (2026-11-20) - Starting\n/bin/sh: 1: module: not found\n\n"
REFUSED = Problem("`batch=0` is not valid", "give 1")
COMPLETED = {"state": "completed"}
STOPPED = {"state": "killed", "failure": {"kind": "stopped", "message": "stopped by Slurm, which ends job 17"}}
RESUBMITTED = {"job": "18", "before": "r0.0"}
"""Of a job that found an attempt of job 17."""


@cases(
    case(slurm_state="COMPLETED", made=COMPLETED, output=None, result=("completed", None, False), failure=None),
    case(
        slurm_state="COMPLETED",
        made={**COMPLETED, **RESUBMITTED},
        output=None,
        result=("completed", None, True),
        failure=None,
    ),
    case(
        slurm_state="NODE_FAIL",
        made={},
        output=None,
        result=("failed", "node", False),
        failure="its node b1 failed (Slurm job 17_0: NODE_FAIL)",
    ),
    case(
        slurm_state="CANCELLED",
        made={},
        output=None,
        result=("killed", "stopped", False),
        failure="it was canceled (Slurm job 17_0: CANCELLED)",
    ),
    case(
        slurm_state="GONE",
        made={},
        output=None,
        result=("failed", "node", False),
        failure="and it wrote no result (Slurm job 17_0: GONE)",
    ),
    case(
        slurm_state="FAILED",
        made={},
        output=None,
        result=("failed", "killed", False),
        failure="without an error message (Slurm job 17_0: FAILED)",
    ),
    case(
        slurm_state="TIMEOUT",
        made={},
        output=None,
        result=("failed", "timeout", False),
        failure="it reached its time limit on b1 (Slurm job 17_0: TIMEOUT)\n  hint: raise `hydra.launcher.time`",
    ),
    case(
        slurm_state="NODE_FAIL",
        made={**STOPPED, **RESUBMITTED},
        output=None,
        result=("failed", "node", False),
        failure="before the run began, its node b1",
    ),
    case(
        slurm_state="FAILED",
        made={"started": False},
        output=REFUSED,
        result=("failed", "job", False),
        failure="`batch=0` is not valid (Slurm job 17_0: FAILED)\n  hint: give 1",
    ),
    case(
        slurm_state="FAILED",
        made={"started": False},
        output=OUTPUT,
        result=("failed", "job", False),
        failure="/bin/sh: 1: module: not found (Slurm job 17_0: FAILED)\n  hint: see its log, ",
    ),
    case(
        slurm_state="FAILED",
        made={"started": False},
        output=None,
        result=("failed", "job", False),
        failure="it ended without a log (Slurm job 17_0: FAILED)\n  hint: ",
    ),
    case(
        slurm_state="CANCELLED",
        made={"started": False},
        output=None,
        result=("killed", "stopped", False),
        failure="before the run began, it was canceled",
    ),
    case(
        slurm_state="BOOT_FAIL",
        made={"started": False},
        output=None,
        result=("failed", "node", False),
        failure="before the run began, its node b1 did not",
    ),
)
def test_result_is_that_of_the_record_or_else_of_slurm(
    make_run, log, capsys, monkeypatch, slurm_state, made, output, result, failure
):
    request, record = make_run(slurm_state, **made)
    before = record.summary()
    if isinstance(output, Problem):
        monkeypatch.setenv(errors.REFUSAL_FILE, str(log.refusal(0)))
        with pytest.raises(SystemExit):
            errors.refuse(InputError(output))
    elif output:
        (log.folder / "17_0_0_log.out").write_text(output)
    collected = collect_result(request, Terminal())
    code = collected.failure and collected.failure.code
    assert (collected.state, code, collected.earlier) == result
    assert collected.failure is None if failure is None else failure in str(collected.failure)
    assert log[0].reported
    assert list(queue.pending_runs(log.sweep.parent)) == []
    is_new = made == {}  # the job has begun its run, but its record has no end
    assert record.summary() == before or is_new
    if is_new:
        assert read_problem(record.summary()["failure"]) == collected.failure
        assert collected.failure.where.host == "b1"
    if result[0] == "completed":
        notes, state = ([], "skipped") if collected.earlier else (["a note"], "completed")
        assert (collected.metrics, collected.notes, collected.no_energy) == (
            METRICS,
            notes,
            Problem("no meter here", code="no_energy"),
        )
        assert capsys.readouterr().out == f"run 0 {state} on b1\n"
    assert record.folder.exists() == made.get("started", True)
    assert record.is_completed() == (result[0] == "completed")


@cases(
    case(slurm_state="NODE_FAIL", code="exception", cause=("failed", "node")),
    case(slurm_state="NODE_FAIL", code="stopped", cause=("failed", "node")),
    case(slurm_state="TIMEOUT", code="stopped", cause=("failed", "timeout")),
    case(slurm_state="OUT_OF_MEMORY", code="killed", cause=("failed", "oom")),
    case(slurm_state="TIMEOUT", code="exception", cause=None),  # a rank raised, and another one hung until the limit
    case(slurm_state="CANCELLED", code="stopped", cause=None),
    case(slurm_state="FAILED", code="exception", cause=None),
)
def test_failure_that_follows_from_the_end_of_the_job_has_it_as_its_cause(make_run, slurm_state, code, cause):
    failure = Problem("the script ended with exit code 1", "", code).to_fields()
    state = "killed" if code == "stopped" else "failed"
    request, record = make_run(slurm_state, state=state, failure=failure)
    result = collect_result(request, Terminal())
    assert (result.state, result.failure.code) == (cause or (state, code))
    assert read_problem(record.summary()["failure"]) == result.failure
    assert record.summary()["state"] == result.state
    assert "exit code 1" in result.failure.message
    assert (slurm_state in result.failure.message) == bool(cause)
    assert record.summary()["metrics"] == METRICS, "what was measured so far is kept"


def test_damaged_record_fails_its_run_and_the_collection_continues(make_run, log, capsys):
    request, record = make_run("COMPLETED", **COMPLETED)
    (record.folder / "summary.json").write_text("{")
    collected = collect_result(request, Terminal())
    assert (collected.state, collected.failure.code) == ("failed", "node")
    assert collected.failure.where == Place(file=str(record.folder), host="b1")
    assert (log[0].reported, capsys.readouterr().out) == (True, "run 0 failed on b1\n")


def test_job_that_archived_the_previous_attempt_has_started(make_run):
    request, record = make_run("NODE_FAIL", **STOPPED, **RESUBMITTED)
    (record.folder / "summary.json").unlink()
    assert collect_result(request, Terminal()).failure.message == "its node b1 failed (Slurm job 18: NODE_FAIL)"
    assert record.summary()["failure"]["code"] == "node"


def test_unpublished_run_stays_in_the_queue_with_its_tracking_keys(make_run, log, monkeypatch):
    class Offline:
        exported = (Exported("wandb", problem="no answer either"),)

        def close(self, limit_s, ended):
            return "no answer"

    monkeypatch.setattr(collect, "load_mlflow", lambda timeout_s: None)
    monkeypatch.setattr(collect, "make_tracker", lambda record, **tracking: Offline())
    request, record = make_run("COMPLETED", tracking=SERVER, state="completed")
    result = collect_result(request, Terminal())
    assert result.publish_error == "no answer"
    assert ["no answer either" in text for text in result.export_errors] == [True]
    assert record.job() == {**job_keys(epochs=1), "tracking": SERVER}
    assert record.run()["identity"] == "id"
    assert [pending.folder for pending in queue.pending_runs(log.sweep.parent)] == [record.folder]
