"""Publishing adds what is missing, nothing twice, and makes MLflow agree with the record."""

import itertools
import json
import platform
import shutil
import zipfile
from array import array
from contextlib import suppress

import pytest
from tracking.conftest import change_record, runs_of, statuses_of

from epochmeter.results.reuse import write_reference
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_METADATA
from epochmeter.tracking.publish import (
    MAX_ENTITIES,
    SWEEPS,
    _log_metrics,
    close_dead_runs,
    include_reused,
    publish,
    records_below,
    whole_windows,
)
from epochmeter.tracking.publisher import CheckedClient, DeadlinePassed
from epochmeter.tracking.run_export import LOSS, Scalar, run_tags

DEAD = {"pid": 2**22 + 1}


def run_of(store, published):
    return store.client.get_run(published.run_id)


def test_duration_of_a_run_is_right_after_its_start_was_corrected(store, make_record):
    record = make_record(state=None, started="1970-01-01T00:02:00+00:00")
    publish(record, store)
    change_record(record, {"started": "2026-11-20T12:00:00+00:00"})
    summary = {"state": "failed", "metrics": {}, "notes": [], "failure": None, "ended": "2026-11-20T12:01:30+00:00"}
    record.write_summary(summary, "")
    publish(record, store)
    (run,) = runs_of(store)
    assert (run.info.start_time, run.info.end_time) == (120_000, 120_000 + 90_000)


@pytest.mark.parametrize(("state", "count"), [("failed", 1), (None, 1), ("completed", 2)])
def test_later_attempt_replaces_an_incomplete_one(store, make_record, state, count):
    record = make_record(sweep="anne's", state=state)
    publish(record, store)
    record.archive_attempt()
    for path in make_record(99).folder.iterdir():
        path.rename(record.folder / path.name)
    publish(record, store)
    assert statuses_of(store) == ["FINISHED"] * count
    assert len(records_below(record.folder)) == count


def test_reused_run_is_part_of_both_sweeps_also_after_publishing_again(store, make_record):
    record = make_record()
    failed = make_record(3, "new", state="failed")
    publish(failed, store)
    write_reference(failed.folder, record, ["batch=16"])
    for _ in range(2):
        assert include_reused(failed.folder, store) == publish(record, store)
    (run,) = runs_of(store)
    assert (run.data.tags[SWEEPS], run.data.tags["epochmeter.sweep_id"]) == ("sweep new/3", "sweep")


def test_completed_record_becomes_a_finished_run_once_with_all_its_files(store, make_record, points):
    record = make_record(batch=8, limit=100)
    (record.folder / "trace.json.gz").write_bytes(b"trace")
    (record.folder / ".partial").write_bytes(b"")
    published = publish(record, store)
    run = run_of(store, published)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "cuda lenet digits batch=8 power_limit=100")
    assert run.info.end_time - run.info.start_time == 90_000
    assert run.data.params["batch"] == "8"
    logged = sorted(points(published.run_id))
    lines = [(line["metrics"], line["epoch"]) for line in record.windows()]
    expected = [*lines, (record.summary()["metrics"], 0)]
    assert logged == sorted((name, epoch, value) for metrics, epoch in expected for name, value in metrics.items())
    files = {file.path for file in store.client.list_artifacts(published.run_id)}
    assert files == {"job.json", "host.json", "epochs.jsonl", "summary.json", "completed.json", "trace.json.gz"}
    for windows in ("6", "0"):  # as if the count of windows were lost
        store.client.set_tag(published.run_id, "epochmeter.windows", windows)
        assert publish(record, store) == published
        assert sorted(points(published.run_id)) == logged
    assert statuses_of(store) == ["FINISHED"]


def test_windows_are_published_together_as_far_as_one_call_takes_them(monkeypatch):
    monkeypatch.setattr("epochmeter.tracking.publish.MAX_ENTITIES", 6)  # metrics per call, and the tag
    windows = [[Scalar("m", float(value), 0, 0)] * count for value, count in enumerate((2, 3, 1, 7, 1, 0))]
    batches = [(number, [point.value for point in points]) for number, points in whole_windows(windows, 10)]
    assert batches == [(12, [0, 0, 1, 1, 1]), (13, [2]), (14, [3] * 7), (16, [4])]
    assert [*whole_windows([], 10)] == []


def test_resumable_run_is_published_up_to_its_checkpoint(store, make_record, points):
    record = make_record(epochs=3, state="failed")
    with zipfile.ZipFile(record.folder / CHECKPOINT, "w") as archive:
        archive.writestr(CHECKPOINT_METADATA, json.dumps({"record_id": record.run()["record_id"], "epochs": 2}))
    run_id = publish(record, store).run_id
    run = store.client.get_run(run_id)
    assert (run.info.status, run.data.tags["epochmeter.failure"]) == ("FAILED", "oom")
    assert {step for _, step, _ in points(run_id)} == {0, 1}
    assert not [name for name in run.data.metrics if name.startswith("total/")]
    assert CHECKPOINT not in {file.path for file in store.client.list_artifacts(run_id)}


def test_resumed_run_is_running_again_without_failure_and_flags_of_deleted_windows(store, make_record):
    record = make_record(state="failed", flags={"energy_lost": "no VDD_IN", "throttled": "hot"})
    published = publish(record, store)
    store.client.set_tag(published.run_id, "mine", "kept")
    (record.folder / "summary.json").unlink()
    change_record(record, {"flags": {"throttled": "hot"}})
    assert publish(record, store) == published
    run = run_of(store, published)
    assert (run.info.status, run.data.tags["epochmeter.throttled"], run.data.tags["mine"]) == ("RUNNING", "hot", "kept")
    assert run.data.tags["epochmeter.windows"] == str(len(record.windows()))
    assert {"epochmeter.failure", "epochmeter.energy_lost"}.isdisjoint(run.data.tags)


def test_interrupted_publishing_is_completed_by_the_next(store, make_record, points, monkeypatch):
    monkeypatch.setattr("epochmeter.tracking.publish.MAX_ENTITIES", 4)  # metrics per call
    for count in itertools.count(1):
        record, calls = make_record(count, epochs=1), itertools.count()

        def interrupt(calls=calls, count=count):
            if next(calls) == count:
                raise DeadlinePassed

        with suppress(DeadlinePassed):
            publish(record, store._replace(client=CheckedClient(store.client, interrupt)))
            break
        published = publish(record, store)
        logged = [(key, step) for key, step, _ in points(published.run_id)]
        expected = sum(len(window["metrics"]) for window in record.windows()) + len(record.summary()["metrics"])
        assert (len(logged), len(set(logged))) == (expected, expected), count
        assert run_of(store, published).info.status == "FINISHED", count
    assert count > 8


def test_full_batch_and_its_tag_are_published(store, make_record, points):
    published = publish(make_record(), store)
    full = [Scalar(f"full/{number}", 1.0, 0, 0) for number in range(MAX_ENTITIES)]
    _log_metrics(full, ("epochmeter.full", "true"), store, run_of(store, published))
    assert len([key for key, _, _ in points(published.run_id) if key.startswith("full/")]) == MAX_ENTITIES
    assert run_of(store, published).data.tags["epochmeter.full"] == "true"
    assert [entry.dataset.name for entry in run_of(store, published).inputs.dataset_inputs] == ["digits"]


def test_run_grows_with_its_record(store, make_record, points):
    complete, record = make_record(epochs=3), make_record(1, epochs=1, state=None, host="elsewhere")
    names = ["epochs.jsonl", "summary.json", "completed.json"]
    for status, steps, moved in (("RUNNING", {0}, []), ("FINISHED", {0, 1, 2}, names)):
        for name in moved:
            (complete.folder / name).rename(record.folder / name)
        published = publish(record, store)
        assert statuses_of(store) == [status]
        assert {step for _, step, _ in points(published.run_id)} == steps


def test_lost_database_is_rebuilt_from_the_records(store, make_record):
    record, rebuilt = make_record(), []
    for _ in range(2):
        rebuilt.append(run_of(store, published := publish(record, store)).data.to_dictionary())
        store.client.delete_run(published.run_id)
    assert rebuilt[0] == rebuilt[1]


def test_end_known_only_to_the_controller_stays(store, make_record):
    record = make_record(state=None, **DEAD)
    for ended in ("failed", None):
        publish(record, store, ended)
        assert statuses_of(store) == ["FAILED"]


def test_run_created_twice_by_a_slow_server_is_shown_once(store, make_record):
    record = make_record()
    first = publish(record, store)
    tags = {**run_tags(RunFolder(record.folder)), SWEEPS: record.run()["sweep_id"]}
    duplicate = store.client.create_run(store.experiment_id, tags=tags).info.run_id
    for _ in range(2):
        assert publish(record, store).run_id == min(first.run_id, duplicate)
    (run,) = runs_of(store)
    assert run.data.metrics["total/epochs"] == 3


def test_dead_runs_of_this_host_are_ended_as_their_records_say(store, make_record):
    """Without a readable record they were killed."""
    reused_pid = {**this_process()._asdict(), "start_ticks": "0"}
    deleted, broken = (make_record(number, **DEAD) for number in (4, 5))
    records = {
        "KILLED": [make_record(0, state=None, **DEAD), make_record(1, state=None, **reused_pid), deleted, broken],
        "FINISHED": [make_record(2, **DEAD)],
        "RUNNING": [make_record(3, state=None, host="board-7")],
    }
    published = {status: [publish(record, store) for record in group] for status, group in records.items()}
    for run in itertools.chain(*published.values()):
        store.client.update_run(run.run_id, status="RUNNING")
    shutil.rmtree(deleted.folder)
    (broken.folder / "job.json").write_text("{half")
    foreign = {"epochmeter.host": platform.node(), "epochmeter.pid": "x"}  # not written by this project
    store.client.create_run(store.experiment_id, tags=foreign)
    close_dead_runs(store)
    for status, group in published.items():
        assert [run_of(store, run).info.status for run in group] == [status] * len(group)


def test_losses_by_step_are_a_curve_over_the_run(store, make_record, points):
    steps = 100_250  # more points than MLflow accepts at once, the last of fewer steps
    record = make_record(epochs=1)
    first, *others = record.windows()
    first["metrics"]["epoch/steps"] = steps
    (record.folder / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [first, *others]))
    record.append_losses(array("f", [float(-(step // 100)) for step in range(steps)]))
    published = publish(record, store)
    assert publish(record, store) == published
    curve = sorted((step, value) for key, step, value in points(published.run_id) if key == LOSS)
    assert curve == [(min(100 * (point + 1), steps), -point) for point in range(-(-steps // 100))]
    assert run_of(store, published).data.metrics["val/accuracy"]
