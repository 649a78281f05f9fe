"""Runs whose process was killed are closed by the next command."""

import json
import os
from array import array
from unittest.mock import Mock

import metadata
import pytest
from default_jobs import job_keys, job_of
from metadata import run_info

from epochmeter.cluster.submissions import SubmissionLog
from epochmeter.results.account import NO_MOMENTS
from epochmeter.results.bottleneck import NO_EPOCH
from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_result import RunResult
from epochmeter.results.sweep_files import SUBMISSIONS_FILE
from epochmeter.run import next_steps, record_end
from epochmeter.run.orphans import close_orphans
from epochmeter.run.plan import read_clock
from epochmeter.run.record_end import SEVERAL_TRAININGS, write_summary
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record
from epochmeter.tracking import queue
from epochmeter.tracking.run_export import run_tags

NOTE = "epoch 1: no energy of VDD_IN: gone."
GONE = this_process()._replace(start_ticks="0")
JOB = job_keys(tracking={"name": "mlflow"})
RUN = {**metadata.RUN, "overrides": ["batch=8"], "energy": {"reason": "no meter"}, "power_limit_w": 15.0}


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


def test_run_of_an_ended_process_is_closed_as_killed_with_the_notes_of_its_windows(begun, closed):
    record = begun("0", GONE)
    keys = {"batch": 4, "target_accuracy": None, "target_loss": None, "evaluate": False}
    run = {**record.run(), "model": {"parameters": 61706}, "idle": {"before": {"power_w": 2.0, "uncertainty_w": 0.1}}}
    record.describe({**JOB, **keys, "throughput": {"start": 0, "stop": 2}}, run)
    metrics = {"epoch/steps": 2, "epoch/samples": 8, "epoch/e2e_s": 4.0}
    record.append_steps(array("f", [0.0, 0.0, 0.0, 2.0] * 2))
    record.append({"window": "epoch", "epoch": 0, "metrics": metrics, "energy": {"term": {}}, "notes": [NOTE]})
    (message,) = closed()
    assert message.startswith("run sweep/0 is marked as killed: epochmeter was killed, the machine stopped")
    assert RunFolder(record.folder).state == "killed"
    summary = record.summary()
    assert (summary["state"], summary["failure"]["code"], summary["notes"]) == ("killed", "killed", [NOTE])
    expected = {"total/e2e_s": 4.0, "total/idle_power_w": 2.0, "total/power_limit_w": 15.0, "model/parameters": 61706}
    assert summary["metrics"].items() >= {**expected, "throughput/samples_per_s": 2.0}.items()
    assert closed() == []


def test_account_of_a_killed_run_ends_when_it_last_wrote_to_its_record(begun, closed):
    record, now = begun("0", GONE), read_clock()
    begun_ns = now.monotonic_ns - 60 * 10**9
    times = {"opened_ns": begun_ns + 20 * 10**9, "closed_ns": begun_ns + 30 * 10**9}
    moments = {"command_ns": begun_ns, "process_ns": begun_ns + 5 * 10**9}
    clock = {"wall_s": now.wall_s - 60, "monotonic_ns": begun_ns}
    record.describe(JOB, {**record.run(), "moments": moments, "clock": clock})
    metrics = {"epoch/steps": 2, "epoch/samples": 8, "epoch/e2e_s": 10.0}
    record.append({"window": "epoch", "epoch": 0, **times, "metrics": metrics, "energy": {"term": {}}})
    for path in record.folder.iterdir():
        os.utime(path, (now.wall_s - 18, now.wall_s - 18))
    closed()
    found = {name.removeprefix("run/"): value for name, value in record.summary()["metrics"].items()}
    assert [found[row] for row in ("prepare_s", "build_s", "unknown_s")] == pytest.approx([5, 15, 10], abs=0.01)
    assert (found["finish_s"], found["wall_s"]) == pytest.approx((12, 42), abs=0.01)


def test_summary_has_the_cost_and_why_there_is_no_total_and_that_epoch_times_vary(tmp_path):
    record = Record(tmp_path)
    measured = {"energy_j": 7.2e6, "energy_uncertainty_j": 0.0}
    job = job_of(warmup_epochs=0, footprint={"price": 0.5, "currency": "EUR"})
    for epoch, e2e_s in enumerate((1.0, 9.0)):
        metrics = {"epoch/steps": 0, "epoch/e2e_s": e2e_s, "epoch/energy_j": 7.2e6}
        energy = {"opened_ns": 0, "closed_ns": 10**9, "joules": {}, "term": {} if epoch else measured}
        record.append({"window": "epoch", "epoch": epoch, "metrics": metrics, "energy": energy})
        result = RunResult(0, [])
        write_summary(record, job, run_info(energy={"source": "counter", "reason": ""}), result)
        if not epoch:
            assert result.metrics["total/cost"] == 1.0
    assert "total/cost" not in result.metrics
    parts = ("no total energy: it is not known for epoch 2", "warning: epoch times vary by 113 %", "no cost")
    assert all(part in note for part, note in zip(parts, result.notes, strict=True))


def test_summary_has_bottleneck_and_stalls_of_the_mean_epoch_or_the_reason(tmp_path):
    record, result = Record(tmp_path), RunResult(0, [])
    run = run_info(storage={"medium": "nvme"})
    parts = {"e2e_s": 10.0, "copy_s": 0.0, "overhead_s": 1.0, "loader_decode_s": 1.0}
    # Of the sums 8 and 12 s of reading and preprocessing, two fifths of the mean stall of 6 s are a fetch stall.
    epochs = ({"data_stall_s": 4.0, "compute_s": 5.0, "loader_read_s": 2.0, "loader_preprocess_s": 8.0},
              {"data_stall_s": 8.0, "compute_s": 1.0, "loader_read_s": 6.0, "loader_preprocess_s": 4.0})  # fmt: skip
    write_summary(record, job_of(warmup_epochs=0), run, result)
    assert (record.summary()["bottleneck"], record.summary()["absent"]["bottleneck"]) == (None, NO_EPOCH)
    for epoch, own in enumerate(epochs):
        metrics = {f"epoch/{name}": value for name, value in {"steps": 0, **parts, **own}.items()}
        record.append({"window": "epoch", "epoch": epoch, "metrics": metrics, "energy": {"term": {}}})
    write_summary(record, job_of(warmup_epochs=0), run, result)
    summary = record.summary()
    assert summary["bottleneck"] == "compute or prep_stall", "of two different epochs"
    assert summary["absent"] == {"run/wall_s": NO_MOMENTS}
    expected = {"prep_stall_s": 3.6, "fetch_stall_s": 2.4, "data_stall_fraction": 0.6, "prep_stall_fraction": 0.36,
                "fetch_stall_fraction": 0.24}  # fmt: skip
    shown = {name: summary["metrics"][f"steady/{name}"] for name in expected}
    assert shown == pytest.approx(expected)
    reused = RunResult(1, [])
    record.describe(JOB, run.document())
    reused.set_from_record(record)
    assert (reused.bottleneck, reused.metrics) == ("compute or prep_stall", summary["metrics"])
    older = {key: value for key, value in summary.items() if key not in ("bottleneck", "absent")}
    older["metrics"] = {name: value for name, value in summary["metrics"].items() if "_stall_" not in name or
                        name.endswith("data_stall_s")}  # fmt: skip
    write_json(record.folder / "summary.json", older)
    reused.set_from_record(record)
    assert (reused.bottleneck, reused.absent) == ("prep_stall", {})
    assert reused.metrics == pytest.approx(summary["metrics"])


def waiting_epochs(record, stalls_s):
    for epoch, stall_s in enumerate(stalls_s):
        parts = {"e2e_s": 10.0, "copy_s": 0.0, "overhead_s": 0.0, "data_stall_s": stall_s, "compute_s": 10 - stall_s}
        metrics = {f"epoch/{name}": value for name, value in {"steps": 0, **parts}.items()}
        record.append({"window": "epoch", "epoch": epoch, "metrics": metrics, "energy": {"term": {}}})


def test_summary_of_a_completed_run_has_its_next_steps_with_the_gain_over_its_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(next_steps, "usable_cores", lambda: 2)
    record, result = Record(tmp_path), RunResult(0, [])
    waiting_epochs(record, (8.0, 8.5, 7.5))
    write_summary(record, job_of(warmup_epochs=0, workers=0, epochs=3), run_info(storage={"medium": "ram"}), result)
    first, *_ = record.summary()["next_steps"]
    assert (first["rule"], first["kind"], first["change"]) == ("start_workers", "setting", "workers=2")
    assert first["gain"] == pytest.approx({"at_most": 0.8, "low": 0.676, "high": 0.924}, abs=1e-3)
    assert [step.to_document() for step in result.next_steps] == record.summary()["next_steps"]
    write_summary(record, job_of(), run_info(), failed := RunResult(0, [], state="failed"))
    assert (record.summary()["next_steps"], failed.next_steps) == ([], [])


def test_rule_that_fails_does_not_lose_the_summary(tmp_path, monkeypatch):
    monkeypatch.setattr(record_end, "next_steps_of", Mock(side_effect=KeyError("medium")))
    record, result = Record(tmp_path), RunResult(0, [])
    waiting_epochs(record, (8.0, 8.5))
    write_summary(record, job_of(warmup_epochs=0), run_info(), result)
    assert (record.summary()["state"], record.summary()["next_steps"]) == ("completed", [])
    assert "no next steps: KeyError: 'medium'" in record.summary()["notes"]


@pytest.mark.parametrize(
    ("epochs", "notes"), [(1, ["the only epoch is warm-up"]), (2, ["all 2 epochs are warm-up"]), (3, [])]
)
def test_run_with_only_warm_up_epochs_has_no_means(tmp_path, epochs, notes):
    record, result = Record(tmp_path), RunResult(0, [])
    for epoch in range(epochs):
        metrics = {"epoch/steps": 0, "epoch/e2e_s": 1.0}
        record.append({"window": "epoch", "epoch": epoch, "metrics": metrics, "energy": {"term": {}}})
    write_summary(record, job_of(warmup_epochs=2), run_info(), result)
    assert [note for note in result.notes if "warm" in note] == [
        f"no means: {note} (`warmup_epochs=2`)" for note in notes
    ]


def test_run_with_several_trainings_has_means_of_each_and_no_means_of_its_own(tmp_path):
    record, result = Record(tmp_path), RunResult(0, [])
    record.describe(JOB, run_info().document())
    for epoch, (training, stall_s) in enumerate(((0, 1.0), (0, 9.0), (1, 1.0))):
        metrics = {"epoch/steps": 0, "epoch/e2e_s": 10.0, "epoch/data_stall_s": stall_s, "epoch/compute_s": 5.0}
        line = {"window": "epoch", "epoch": epoch, "training": training, "metrics": metrics, "energy": {"term": {}}}
        record.append(line)
    write_summary(record, job_of(warmup_epochs=0), run_info(), result)
    summary = record.summary()
    assert summary["metrics"] == {"total/epochs": 3, "total/e2e_s": 30.0}
    assert (summary["bottleneck"], summary["absent"]["bottleneck"]) == (None, SEVERAL_TRAININGS)
    first, second = summary["trainings"]
    assert (first["metrics"]["steady/data_stall_s"], second["metrics"]["steady/data_stall_s"]) == (5.0, 1.0)
    assert (first["metrics"]["total/epochs"], second["bottleneck"]) == (2, "compute")
    read = RunResult(1, [])
    read.set_from_record(record)
    assert read.trainings == [first["metrics"], second["metrics"]]
    assert run_tags(RunFolder(record.folder))["epochmeter.trainings"] == "2"


def test_run_with_a_full_disk_at_its_end_is_closed_as_failed(begun, closed, tmp_path):
    record, untracked = begun("0", GONE), begun("1", GONE)
    write_json(record.folder / "summary.json", {"state": "completed", "metrics": {}, "notes": [], "failure": None})
    untracked.describe({**JOB, "tracking": {"name": "none", "experiment": "x"}}, untracked.run())
    queue.dequeue(record)  # it was published
    assert sorted(message[:33] for message in closed()) == [
        "run sweep/0 is marked as failed: ", "run sweep/1 is marked as killed: ",
    ]  # fmt: skip
    assert record.summary()["state"] == RunFolder(record.folder).state == "failed"
    assert [pending.folder for pending in queue.pending_runs(tmp_path / "multirun")] == [record.folder]
    queue.dequeue(record)  # it was published as failed
    assert list(queue.pending_runs(tmp_path / "multirun")) == []


def test_only_readable_dead_runs_of_this_host_that_were_not_submitted_are_closed(begun, closed):
    broken, record = begun("0", GONE), begun("1", GONE)
    begun("2", this_process())
    begun("3", GONE._replace(host="board-7"))
    (broken.folder / "job.json").write_text(json.dumps({"job": {}, "run": {"record_id": "run0"}}))
    SubmissionLog(record.folder.parent).write({})
    assert closed() == []
    (record.folder.parent / SUBMISSIONS_FILE).unlink()
    (message,) = closed()
    assert "sweep/1" in message
