"""How a run ended that a node made."""

import signal
from array import array

import pytest
from default_jobs import job_keys, job_of

from epochmeter.cluster import collect
from epochmeter.cluster.collect import collect_result
from epochmeter.config.job import RunRequest
from epochmeter.console.console import Terminal
from epochmeter.results.run_result import RunResult, stop_reason
from epochmeter.shared.record import Record
from epochmeter.tracking import queue

NOWHERE = {"name": "none", "tensorboard": False}
"""What a node is told of tracking."""
LIMITS = {"power_limit_w": 15.0, "power_limit_max_w": None}
SERVER = {"name": "server", "experiment": "x", "uri": "http://board:5000", "tensorboard": False}


@pytest.fixture
def run(ledger):
    """run(state, node="b1") -> a run whose job Slurm ended so, and its record, which is as the job has left it."""

    def made(slurm_state, begun=True, earlier=False, tracking=NOWHERE, **summary):
        of = RunRequest(job_of(tracking=tracking), {}, ["batch=8"], ledger.folder.parent / "0", of_sweep=True)
        record = Record(of.folder)
        record.folder.mkdir(exist_ok=True)
        if begun:
            facts = {"record_id": "r0", "identity": "id", "rehearsal": [], "energy": {"reason": "no meter here"}}
            record.describe(job_keys(tracking=NOWHERE, epochs=1), {**facts, **LIMITS})
        if summary:
            record.write_summary({"metrics": {}, "notes": [], "failure": None, **summary}, "id")
        ledger.update({0: {"job": "17_0", "reported": False, "earlier": earlier, "state": slurm_state, "node": "b1"}})
        return of, record

    return made


def test_a_run_ended_as_its_record_says(run, ledger, capsys):
    order, _ = run("COMPLETED", state="completed", metrics={"steady/e2e_s": 2.0}, notes=["a note"])
    outcome = collect_result(order, Terminal())
    assert (outcome.state, outcome.metrics, outcome.notes) == ("completed", {"steady/e2e_s": 2.0}, ["a note"])
    assert outcome.no_energy == "no meter here"
    assert ledger[0]["reported"]
    assert capsys.readouterr().out == "run 0 completed on b1\n"


def test_a_failure_is_told_as_the_node_told_it(run):
    failure = {"kind": "oom", "message": "CUDA out of memory in epoch 2"}
    order, _ = run("FAILED", state="failed", failure=failure)
    outcome = collect_result(order, Terminal())
    assert (outcome.state, outcome.kind, outcome.failure) == ("failed", "oom", "CUDA out of memory in epoch 2")


@pytest.mark.parametrize(
    ("state", "ended", "kind", "why"),
    [
        ("NODE_FAIL", "failed", "node", "its node b1 failed"),
        ("TIMEOUT", "failed", "timeout", "its time limit on b1"),
        ("OUT_OF_MEMORY", "failed", "oom", "its memory limit on b1"),
        ("CANCELLED", "killed", "stopped", "it was canceled"),
        ("PREEMPTED", "killed", "stopped", "preempted"),
        ("GONE", "failed", "node", "Slurm no longer lists it"),
        ("FAILED", "failed", "killed", "without an error message"),
    ],
)
def test_a_record_that_tells_no_end_gets_the_one_that_slurm_tells(run, state, ended, kind, why):
    order, record = run(state)
    outcome = collect_result(order, Terminal())
    assert (outcome.state, outcome.kind) == (ended, kind)
    assert why in outcome.failure
    assert outcome.failure.endswith(f"(Slurm job 17_0: {state})")
    assert record.summary()["failure"] == {"kind": kind, "message": outcome.failure}
    assert not record.is_completed()


def test_a_run_that_told_no_end_has_all_that_one_has_that_was_killed_here(run):
    order, record = run("NODE_FAIL")
    asked = {"batch": 4, "warmup_epochs": 1, "target_accuracy": None, "target_loss": None, "evaluate": False}
    described = {**record.run(), "model": {"parameters": 61706}, "idle": {"before_w": 2.0}}
    record.describe({**record.job(), **asked, "throughput": {"start": 0, "stop": 2}}, described)
    line = {"window": "epoch", "epoch": 0, "metrics": {"epoch/steps": 2, "epoch/samples": 8, "epoch/e2e_s": 4.0}}
    record.append({**line, "notes": ["epoch window 0: no energy of VDD_IN: gone."]})
    record.append_steps(array("f", [0.0, 0.0, 0.0, 2.0] * 2))
    outcome = collect_result(order, Terminal())
    assert outcome.metrics == record.summary()["metrics"]
    told = {
        "total/e2e_s": 4.0,
        "total/idle_power_w": 2.0,
        "total/power_limit_w": 15.0,
        "model/parameters": 61706,
        "throughput/samples_per_s": 2.0,
    }
    assert outcome.metrics.items() >= told.items()
    assert outcome.notes == record.summary()["notes"] == ["epoch window 0: no energy of VDD_IN: gone."]


def test_a_run_that_was_completed_before_is_neither_published_nor_said_again(run, ledger, capsys, monkeypatch):
    monkeypatch.setattr(collect, "make_tracker", lambda *_, **__: pytest.fail("published again"))
    order, _ = run("COMPLETED", earlier=True, state="completed", metrics={"steady/e2e_s": 2.0})
    outcome = collect_result(order, Terminal())
    assert (outcome.earlier, outcome.metrics) == (True, {"steady/e2e_s": 2.0})
    assert capsys.readouterr().out == ""


def test_a_run_that_slurm_asks_to_end_says_so_and_how_it_gets_more_time(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    outcome = RunResult(0, [])
    outcome.set_stopped(SystemExit(128 + signal.SIGTERM))
    assert (outcome.state, outcome.kind) == ("killed", "stopped")
    assert outcome.failure.startswith("stopped by Slurm, which ends job 17: its time is nearly up")
    assert "hydra.launcher.time=" in outcome.failure
    assert "scancel" in outcome.failure


def test_what_else_stops_a_run_is_told_as_anywhere():
    job, term, hangup = {"SLURM_JOB_ID": "17"}, SystemExit(128 + signal.SIGTERM), SystemExit(128 + signal.SIGHUP)
    assert stop_reason(KeyboardInterrupt(), job) == "stopped by Ctrl-C"
    assert stop_reason(hangup, job) == "stopped by a signal"
    assert stop_reason(term, {}) == "stopped by a signal"


@pytest.fixture
def sent_again(run, ledger):
    """sent_again(state, ...) -> a run sent once more, whose job, 18, Slurm ended so; there lies what job 17 has left to
    go on from, with the end that it told, or one that is given."""

    def made(slurm_state, **summary):
        failure = {"kind": "stopped", "message": "stopped by Slurm, which ends job 17"}
        order, record = run(slurm_state, **{"state": "killed", "failure": failure, **summary})
        ledger.update({0: {"job": "18", "previous_attempt": "r0.0"}})
        return order, record

    return made


def test_a_job_that_ended_before_it_went_on_is_told_by_its_own_end_and_not_by_that_of_the_one_before(sent_again):
    order, record = sent_again("NODE_FAIL")
    outcome = collect_result(order, Terminal())
    assert (outcome.state, outcome.kind) == ("failed", "node")
    assert outcome.failure == "before the run began, its node b1 failed (Slurm job 18: NODE_FAIL)"
    assert record.summary()["failure"]["message"] == "stopped by Slurm, which ends job 17", (
        "of the attempt that it is of"
    )


def test_a_job_that_went_on_is_told_by_its_own_end(sent_again, ledger):
    order, record = sent_again("NODE_FAIL")
    record.describe(record.job(), {**record.run(), "resumed": [{"epoch": 3}]})
    (record.folder / "summary.json").unlink()
    assert collect_result(order, Terminal()).failure == "its node b1 failed (Slurm job 18: NODE_FAIL)"
    assert record.summary()["failure"]["kind"] == "node"
    assert ledger[0]["reported"]


def test_a_job_that_was_killed_as_it_set_the_earlier_end_aside_has_begun(sent_again):
    order, record = sent_again("NODE_FAIL")
    (record.folder / "summary.json").unlink()
    assert collect_result(order, Terminal()).failure == "its node b1 failed (Slurm job 18: NODE_FAIL)"


def test_a_completed_run_that_its_node_finds_to_be_what_it_would_measure_was_completed_before(
    sent_again, ledger, capsys
):
    order, _ = sent_again("COMPLETED", state="completed", failure=None, metrics={"steady/e2e_s": 2.0})
    outcome = collect_result(order, Terminal())
    assert (outcome.state, outcome.earlier, outcome.metrics) == ("completed", True, {"steady/e2e_s": 2.0})
    assert ledger[0]["reported"]
    assert capsys.readouterr().out == "run 0 skipped on b1\n"


def test_a_completed_run_whose_node_could_not_look_at_it_is_none_of_this_command(sent_again):
    order, record = sent_again("NODE_FAIL", state="completed", failure=None)
    assert collect_result(order, Terminal()).failure.startswith("before the run began, its node b1 failed")
    assert record.is_completed()


def test_a_job_that_was_refused_is_told_in_its_last_words(run, ledger):
    order, record = run("FAILED", begun=False)
    said = "submitit INFO - Starting\nerror: `batch=0` is not valid\n  hint: give 1\nsubmitit INFO - over\n\n"
    (ledger.folder / "17_0_0_log.out").write_text(said)
    outcome = collect_result(order, Terminal())
    assert (outcome.state, outcome.kind) == ("failed", "job")
    assert outcome.failure.startswith(
        "error: `batch=0` is not valid hint: give 1 (Slurm job 17_0: FAILED)\n  hint: see its log, "
    )
    assert not record.folder.exists()


def test_a_job_without_a_log_points_at_a_folder_that_is_not_shared(run):
    order, _ = run("FAILED", begun=False)
    assert "is shared with its node" in collect_result(order, Terminal()).failure


def test_a_job_that_was_canceled_before_it_began_says_so(run):
    order, _ = run("CANCELLED", begun=False)
    outcome = collect_result(order, Terminal())
    assert (outcome.state, outcome.failure) == (
        "killed",
        "before the run began, it was canceled (Slurm job 17_0: CANCELLED)",
    )


def test_where_a_run_is_to_be_shown_is_in_its_record_and_it_waits_for_a_server_that_is_away(run, ledger, monkeypatch):
    class Away:
        def close(self, limit_s, ended):
            return "MLflow does not show all of this run: no answer"

    monkeypatch.setattr(collect, "load_mlflow", lambda patience_s: None)
    monkeypatch.setattr(collect, "make_tracker", lambda record, **tracking: Away())
    order, record = run("COMPLETED", tracking=SERVER, state="completed")
    assert collect_result(order, Terminal()).publish_error == "MLflow does not show all of this run: no answer"
    assert record.job() == {**job_keys(epochs=1), "tracking": SERVER}
    assert record.run()["identity"] == "id"
    (waiting,) = queue.pending_runs(ledger.folder.parents[1])
    assert waiting.folder == record.folder


def test_a_run_that_is_to_be_shown_nowhere_waits_for_nothing(run, ledger):
    order, _ = run("COMPLETED", state="completed")
    collect_result(order, Terminal())
    assert list(queue.pending_runs(ledger.folder.parents[1])) == []
