"""Runs whose process was killed are closed by the next command."""

import json
from array import array

import pytest
from default_jobs import job_keys, job_of

from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.results.run_result import RunResult
from epochmeter.results.run_status import status_of
from epochmeter.results.sweep_files import SUBMISSIONS_FILE
from epochmeter.run.finish import close_orphans, write_summary
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record
from epochmeter.tracking import queue

NOTE = "epoch 1: no energy of VDD_IN: gone."
GONE = this_process()._replace(start_ticks="0")
JOB = job_keys(tracking={"name": "mlflow"})
RUN = {"number": 0, "overrides": ["batch=8"], "identity": "1d", "energy": {"reason": "no meter"}, "power_limit_w": 15.0,
       "power_limit_max_w": None}  # fmt: skip


@pytest.fixture
def begun(tmp_path):
    """begun("0", process) -> the record of a run that has begun, in the queue."""

    def begin(number, process):
        record = Record(tmp_path / "multirun" / "sweep" / number)
        record.folder.mkdir(parents=True)
        record.describe(JOB, {**RUN, "record_id": f"run{number}", **process._asdict()})
        queue.enqueue(record, f"run{number}")
        return record

    return begin


@pytest.fixture
def closed(tmp_path):
    """closed() -> the messages of closing the runs of ended processes."""

    def close():
        messages = []
        close_orphans(tmp_path / "multirun", messages.append)
        return messages

    return close


def test_run_of_an_ended_process_is_closed_as_killed_once_with_the_notes_of_its_windows(begun, closed):
    record = begun("0", GONE)
    keys = {"batch": 4, "target_accuracy": None, "target_loss": None, "evaluate": False}
    run = {**record.run(), "model": {"parameters": 61706}, "idle": {"before_w": 2.0}}
    record.describe({**JOB, **keys, "throughput": {"start": 0, "stop": 2}}, run)
    metrics = {"epoch/steps": 2, "epoch/samples": 8, "epoch/e2e_s": 4.0}
    record.append_steps(array("f", [0.0, 0.0, 0.0, 2.0] * 2))
    record.append({"window": "epoch", "epoch": 0, "metrics": metrics, "energy": {"term": {}}, "notes": [NOTE]})
    (message,) = closed()
    assert message.startswith("run sweep/0 is marked as killed: epochmeter was killed, the machine stopped")
    assert status_of(record) == "killed"
    summary = record.summary()
    assert (summary["state"], summary["failure"]["kind"], summary["notes"]) == ("killed", "killed", [NOTE])
    expected = {"total/e2e_s": 4.0, "total/idle_power_w": 2.0, "total/power_limit_w": 15.0, "model/parameters": 61706}
    assert summary["metrics"].items() >= {**expected, "throughput/samples_per_s": 2.0}.items()
    assert closed() == []


def test_summary_has_the_cost_and_why_there_is_no_total_and_that_epoch_times_vary(tmp_path):
    record = Record(tmp_path)
    measured = {"energy_j": 7.2e6, "energy_uncertainty_j": 0.0}
    job = job_of(warmup_epochs=0, footprint={"price": 0.5, "currency": "EUR"})
    for epoch, e2e_s in enumerate((1.0, 9.0)):
        metrics = {"epoch/steps": 0, "epoch/e2e_s": e2e_s, "epoch/energy_j": 7.2e6}
        energy = {"opened_ns": 0, "closed_ns": 10**9, "joules": {}, "term": {} if epoch else measured}
        record.append({"window": "epoch", "epoch": epoch, "metrics": metrics, "energy": energy})
        result = RunResult(0, [])
        write_summary(record, job, {**RUN, "energy": {"source": "counter", "reason": ""}}, result)
        if not epoch:
            assert result.metrics["total/cost"] == 1.0
    assert "total/cost" not in result.metrics
    parts = ("no total energy: it was not measured in epoch 2", "warning: epoch times vary by 113 %", "no cost")
    assert all(part in note for part, note in zip(parts, result.notes, strict=True))


@pytest.mark.parametrize(
    ("epochs", "notes"), [(1, ["the only epoch is warm-up"]), (2, ["all 2 epochs are warm-up"]), (3, [])]
)
def test_run_with_only_warm_up_epochs_has_no_means(tmp_path, epochs, notes):
    record, result = Record(tmp_path), RunResult(0, [])
    for epoch in range(epochs):
        metrics = {"epoch/steps": 0, "epoch/e2e_s": 1.0}
        record.append({"window": "epoch", "epoch": epoch, "metrics": metrics, "energy": {"term": {}}})
    write_summary(record, job_of(warmup_epochs=2), RUN, result)
    assert [note for note in result.notes if "warm" in note] == [
        f"no means: {note} (`warmup_epochs=2`)" for note in notes
    ]


def test_run_with_a_full_disk_at_its_end_is_closed_as_failed_and_one_without_tracking_leaves_the_queue(
    begun, closed, tmp_path
):
    record, untracked = begun("0", GONE), begun("1", GONE)
    write_json(record.folder / "summary.json", {"state": "completed", "metrics": {}, "notes": [], "failure": None})
    untracked.describe({**JOB, "tracking": {"name": "none", "experiment": "x"}}, untracked.run())
    queue.dequeue(record)  # it was published
    assert sorted(message[:33] for message in closed()) == [
        "run sweep/0 is marked as failed: ", "run sweep/1 is marked as killed: ",
    ]  # fmt: skip
    assert record.summary()["state"] == status_of(record) == "failed"
    assert [pending.folder for pending in queue.pending_runs(tmp_path / "multirun")] == [record.folder]
    queue.dequeue(record)  # it was published as failed
    assert list(queue.pending_runs(tmp_path / "multirun")) == []


def test_only_dead_runs_of_this_host_that_can_be_read_and_were_not_submitted_are_closed(begun, closed):
    broken, record = begun("0", GONE), begun("1", GONE)
    begun("2", this_process())
    begun("3", GONE._replace(host="board-7"))
    (broken.folder / "job.json").write_text(json.dumps({"job": {}, "run": {"record_id": "run0"}}))
    SubmissionLog(record.folder.parent).write({})
    assert closed() == []
    (record.folder.parent / SUBMISSIONS_FILE).unlink()
    (message,) = closed()
    assert "sweep/1" in message
