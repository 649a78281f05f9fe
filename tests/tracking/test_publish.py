"""Publishing adds what is missing, nothing twice, and leaves MLflow as the record is."""

import json
import shutil
import zipfile
from array import array
from datetime import datetime

import pytest

from epochmeter.machine.process_identity import this_process
from epochmeter.results.reuse import write_reference
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import CHECKPOINT, CHECKPOINT_METADATA, Record
from epochmeter.tracking import scalars
from epochmeter.tracking.client import open_store
from epochmeter.tracking.publish import SWEEPS, close_dead_runs, include_reused, publish, publish_steps, records_below
from epochmeter.tracking.scalars import LOSS, POWER, Scalar


def statuses_of(store):
    return sorted(run.info.status for run in store.client.search_runs([store.experiment_id]))


def set_aside(record, make_record, **anew):
    """The record of a later attempt at the same run, after the earlier one was set aside."""
    record.archive_attempt()
    again = make_record(99, **anew)
    described = {**again.run(), "number": record.folder.name}
    for path in again.folder.iterdir():
        path.rename(record.folder / path.name)
    later = Record(record.folder)
    later.describe(later.job(), described)
    return later


@pytest.mark.parametrize("state", ["failed", None], ids=["failed", "killed"])
def test_later_attempt_takes_the_place_of_one_that_was_not_completed(store, make_record, state):
    record = make_record(state=state)
    publish(record, store)
    later = set_aside(record, make_record)
    publish(later, store)
    assert statuses_of(store) == ["FINISHED"]
    assert [each.folder for each in records_below(later.folder)] == [later.folder]


def test_completed_measurement_that_was_set_aside_stays(store, make_record):
    record = make_record()
    publish(record, store)
    later = set_aside(record, make_record, batch=32)
    publish(later, store)
    assert statuses_of(store) == ["FINISHED", "FINISHED"]
    assert len(records_below(later.folder)) == 2


def test_reused_run_is_part_of_both_sweeps_also_once_it_is_published_again(store, make_record):
    record = make_record()
    failed = make_record(3, "new", state="failed")
    publish(failed, store)
    run = failed.folder
    write_reference(run, record, ["batch=16"])
    for _ in range(2):
        assert include_reused(run, store) == publish(record, store)
    (shown,) = store.client.search_runs([store.experiment_id])
    assert (shown.data.tags[SWEEPS], shown.data.tags["epochmeter.sweep_id"]) == ("sweep new/3", "sweep")


def test_run_that_many_sweeps_reuse_stays_part_of_its_own(store, make_record, tmp_path, monkeypatch):
    monkeypatch.setattr("epochmeter.tracking.publish.MAX_SWEEPS", 2)
    record = make_record()
    for name in ("a", "b", "c"):
        (folder := tmp_path / name / "0").mkdir(parents=True)
        write_reference(folder, record, [])
        published = include_reused(folder, store)
    assert run_of(store, published).data.tags[SWEEPS] == "sweep b/0 c/0"


def now():
    return datetime.now().astimezone().isoformat(timespec="seconds")


def run_of(store, published):
    return store.client.get_run(published.run_id)


def test_a_completed_record_becomes_a_finished_run(store, make_record):
    record = make_record(batch=8, limit=100)
    run = run_of(store, publish(record, store))
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "cuda lenet digits batch=8 power_limit=100"
    assert run.info.end_time - run.info.start_time == 90_000
    assert run.data.params["batch"] == "8"
    assert run.data.metrics["total/energy_j"] == record.summary()["metrics"]["total/energy_j"]
    assert run.inputs.dataset_inputs[0].dataset.name == "digits"


def test_each_window_is_a_step_of_its_epoch(store, make_record, points):
    record = make_record(epochs=2)
    published = publish(record, store)
    logged = {(key, step): value for key, step, value in points(published.run_id)}
    for window in record.windows():
        for name, value in window["metrics"].items():
            assert logged[name, window["epoch"]] == value


@pytest.mark.parametrize(
    ("clock", "closed_s"), [(None, 2.0), ({"wall_s": 1e9 + 60.5, "monotonic_ns": 99 * 10**9}, 63.5)]
)
def test_a_points_time_is_when_its_window_closed_however_long_the_run_waited_for_a_lock(
    store, make_record, clock, closed_s
):
    record = make_record(energy=False, limit=300, epochs=1, started="2001-09-09T01:46:40+00:00", clock=clock)
    window = {**record.windows()[0], "opened_ns": 100 * 10**9, "closed_ns": 102 * 10**9}
    (record.folder / "epochs.jsonl").write_text(json.dumps(window) + "\n")
    run_id = publish(record, store).run_id
    (point,) = store.client.get_metric_history(run_id, "epoch/e2e_s")
    assert point.timestamp == (1e9 + closed_s) * 1000


def test_of_a_run_that_may_go_on_only_what_stays_is_published(store, make_record, points):
    record = make_record(epochs=3, state="failed")
    with zipfile.ZipFile(record.folder / CHECKPOINT, "w") as archive:
        archive.writestr(CHECKPOINT_METADATA, json.dumps({"record_id": record.run()["record_id"], "epochs": 2}))
    run_id = publish(record, store).run_id
    run = store.client.get_run(run_id)
    assert (run.info.status, run.data.tags["epochmeter.failure"]) == ("FAILED", "oom")
    assert {step for _, step, _ in points(run_id)} == {0, 1}
    assert not [name for name in run.data.metrics if name.startswith("total/")]
    assert CHECKPOINT not in {file.path for file in store.client.list_artifacts(run_id)}


def test_a_run_that_goes_on_is_the_one_it_was_and_forgets_how_it_had_failed(store, make_record, points):
    record = make_record(epochs=3, state="failed", started=now())
    run_id = publish(record, store).run_id
    (record.folder / "summary.json").unlink()
    assert publish(record, store).run_id == run_id
    run = store.client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert "epochmeter.failure" not in run.data.tags


def test_a_mark_of_windows_that_were_cut_away_is_one_no_more_and_what_others_tagged_stays(store, make_record):
    record = make_record(state=None, flags={"energy_lost": "no VDD_IN", "throttled": "hot"})
    run_id = publish(record, store).run_id
    store.client.set_tag(run_id, "mine", "kept")
    record.describe(record.job(), {**record.run(), "flags": {"throttled": "hot"}})
    publish(record, store)
    tags = store.client.get_run(run_id).data.tags
    assert "epochmeter.energy_lost" not in tags
    assert (tags["epochmeter.throttled"], tags["mine"]) == ("hot", "kept")
    assert tags["epochmeter.windows"] == str(len(record.windows()))


def test_a_points_time_is_by_the_clock_of_the_start_that_measured_it(store, make_record):
    """Another boot, another beginning of the monotonic clock."""
    clock = {"wall_s": 1e9, "monotonic_ns": 0}
    later = {"epoch": 1, "started": now(), "clock": {"wall_s": 1.1e9, "monotonic_ns": 0}}
    record = make_record(epochs=2, clock=clock, resumed=[later])
    closed_ms = [w["closed_ns"] // 10**6 for w in record.windows() if w["window"] == "epoch"]
    history = store.client.get_metric_history(publish(record, store).run_id, "epoch/e2e_s")
    assert sorted(point.timestamp for point in history) == [1e12 + closed_ms[0], 1.1e12 + closed_ms[1]]


def test_every_file_of_the_record_is_an_artifact(store, make_record):
    record = make_record()
    (record.folder / "trace.json.gz").write_bytes(b"trace")
    (record.folder / ".half-written").write_bytes(b"")
    published = publish(record, store)
    there = {file.path for file in store.client.list_artifacts(published.run_id)}
    assert there == {"job.json", "host.json", "epochs.jsonl", "summary.json", "completed.json", "trace.json.gz"}


def test_publishing_again_adds_nothing(store, make_record, points):
    record = make_record()
    first = publish(record, store)
    before = sorted(points(first.run_id))
    assert publish(record, store) == first
    assert sorted(points(first.run_id)) == before
    assert len(store.client.search_runs([store.experiment_id])) == 1


def test_a_curve_of_the_power_that_is_there_is_not_read_again(store, make_record, monkeypatch):
    record = make_record()
    record.append_power([100 * 10**9, 101 * 10**9], {"total": [10.0, 12.0]})
    published = publish(record, store)
    monkeypatch.setattr(scalars, "power_scalars", None)
    assert publish(record, store) == published
    assert run_of(store, published).data.metrics[POWER] == 12.0


def test_a_deadline_may_break_off_the_reading_of_the_power_at_each_point(store, make_record, monkeypatch):
    read = []
    curve = (read.append(ms) or Scalar(POWER, 5.0, ms, ms) for ms in range(3))
    monkeypatch.setattr(scalars, "power_scalars", lambda *_: curve)
    assert {0, 1, 2, 3} == {len(read) for _ in publish_steps(make_record(), store)}


@pytest.mark.parametrize("calls", range(1, 16))
def test_publishing_that_stopped_anywhere_is_completed_by_the_next(store, make_record, points, calls):
    record = make_record(epochs=2)
    steps = publish_steps(record, store)
    for _ in range(calls):
        next(steps, None)
    steps.close()
    published = publish(record, store)
    logged = [(key, step) for key, step, _ in points(published.run_id)]
    assert len(logged) == len(set(logged))
    assert len(logged) == sum(len(w["metrics"]) for w in record.windows()) + len(record.summary()["metrics"])
    assert run_of(store, published).info.status == "FINISHED"


def test_a_window_whose_count_was_lost_is_not_logged_twice(store, make_record, points):
    record = make_record()
    published = publish(record, store)
    before = sorted(points(published.run_id))
    store.client.set_tag(published.run_id, "epochmeter.windows", "0")
    publish(record, store)
    assert sorted(points(published.run_id)) == before


def test_a_run_grows_with_its_record(store, make_record, points):
    whole = make_record(epochs=3)
    lines = (whole.folder / "epochs.jsonl").read_text().splitlines(keepends=True)
    (whole.folder / "completed.json").rename(whole.folder / ".completed")
    (whole.folder / "summary.json").rename(whole.folder / ".summary")
    (whole.folder / "epochs.jsonl").write_text("".join(lines[:2]))
    described = whole.folder / "job.json"
    write_json(described, {"job": whole.job(), "run": {**whole.run(), "host": "elsewhere"}})
    published = publish(whole, store)
    assert run_of(store, published).info.status == "RUNNING"
    assert {step for _, step, _ in points(published.run_id)} == {0}
    (whole.folder / "epochs.jsonl").write_text("".join(lines))
    (whole.folder / ".summary").rename(whole.folder / "summary.json")
    (whole.folder / ".completed").rename(whole.folder / "completed.json")
    assert publish(whole, store).run_id == published.run_id
    assert run_of(store, published).info.status == "FINISHED"


def test_a_lost_database_is_rebuilt_from_the_folders(store, make_record, empty_database):
    record = make_record()
    database = store.uri.removeprefix("sqlite:///")
    first = run_of(store, publish(record, store)).data
    store.client._tracking_client.store.engine.dispose()
    shutil.copy(empty_database, database)
    again = open_store(uri=store.uri)
    assert run_of(again, publish(record, again)).data.to_dictionary() == first.to_dictionary()


@pytest.mark.parametrize(("state", "shown"), [("failed", "FAILED"), ("killed", "KILLED")])
def test_a_run_that_did_not_end_well_says_so(store, make_record, state, shown):
    assert run_of(store, publish(make_record(state=state), store)).info.status == shown


def test_an_end_that_only_the_steward_could_tell_stands_when_the_process_is_gone(store, make_record):
    record = make_record(state=None, pid=2**22 + 1)
    *_, published = publish_steps(record, store, ended="failed")
    assert run_of(store, published).info.status == "FAILED"
    publish(record, store)
    assert run_of(store, published).info.status == "FAILED"


def test_a_run_that_was_made_twice_is_shown_once(store, make_record):
    """By a server that answered too late, and was asked again."""
    record = make_record()
    first = publish(record, store)
    tags = run_of(store, first).data.tags
    double = store.client.create_run(store.experiment_id, tags=tags).info.run_id
    shown = publish(record, store)
    assert shown.run_id == min(first.run_id, double)
    (run,) = store.client.search_runs([store.experiment_id])
    assert run.data.metrics["total/epochs"] == record.summary()["metrics"]["total/epochs"]
    assert publish(record, store) == shown


def test_a_number_that_another_process_has_by_now_keeps_no_run_alive(store, make_record):
    """The process is told from a later one by when it began."""
    stale = publish(make_record(0, state=None, **this_process()._replace(began="0")._asdict()), store)
    store.client.update_run(stale.run_id, status="RUNNING")
    assert close_dead_runs(store) == [stale.run_id]
    assert run_of(store, stale).info.status == "KILLED"


def test_the_runs_of_dead_processes_are_ended(store, make_record):
    dead = make_record(0, state=None, pid=2**22 + 1)
    elsewhere = make_record(1, state=None, host="board-7")
    stale = publish(dead, store)
    store.client.update_run(stale.run_id, status="RUNNING")
    running = publish(elsewhere, store)
    assert close_dead_runs(store) == [stale.run_id]
    assert run_of(store, stale).info.status == "KILLED"
    assert run_of(store, running).info.status == "RUNNING"


def test_a_finished_run_whose_last_word_never_reached_mlflow_is_reaped_as_finished(store, make_record):
    published = publish(make_record(pid=2**22 + 1), store)
    store.client.update_run(published.run_id, status="RUNNING")
    close_dead_runs(store)
    assert run_of(store, published).info.status == "FINISHED"


def test_a_dead_run_whose_folder_is_gone_was_killed(store, make_record):
    record = make_record(pid=2**22 + 1)
    published = publish(record, store)
    store.client.update_run(published.run_id, status="RUNNING")
    shutil.rmtree(record.folder)
    close_dead_runs(store)
    assert run_of(store, published).info.status == "KILLED"


def test_a_dead_run_whose_record_is_broken_keeps_no_other_from_its_end(store, make_record):
    records = [make_record(number, state=None, pid=2**22 + 1) for number in (0, 1)]
    published = [publish(record, store) for record in records]
    for run in published:
        store.client.update_run(run.run_id, status="RUNNING")
    (records[0].folder / "job.json").write_text("{half")
    assert len(close_dead_runs(store)) == 2
    assert {run_of(store, run).info.status for run in published} == {"KILLED"}


def test_a_folder_that_is_no_record_is_refused(store, tmp_path):
    with pytest.raises(ValueError, match=r"has no job\.json"):
        publish(Record(tmp_path), store)


def test_records_are_found_below_a_run_a_sweep_or_all_of_them(make_record, tmp_path):
    records = [make_record(number) for number in (0, 1)]
    (tmp_path / "multirun" / "sweep" / "2").mkdir()
    for folder in (tmp_path / "multirun", tmp_path / "multirun" / "sweep"):
        assert [found.folder for found in records_below(folder)] == [record.folder for record in records]
    assert [found.folder for found in records_below(records[1].folder)] == [records[1].folder]


@pytest.fixture
def stepped(make_record):
    """stepped(steps) -> a record of one epoch of so many steps, whose loss goes down by one each hundred of them."""

    def made(steps):
        record = make_record(epochs=1)
        first, *others = record.windows()
        first["metrics"]["epoch/steps"] = steps
        (record.folder / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [first, *others]))
        record.append_losses(array("f", [float(-(step // 100)) for step in range(steps)]))
        return record

    return made


@pytest.mark.parametrize("steps", [250, 210_000], ids=["few", "more points than MLflow takes at once"])
def test_losses_by_step_are_a_curve_over_the_steps_of_the_run(store, stepped, points, steps):
    record = stepped(steps)
    published = publish(record, store)
    assert publish(record, store) == published
    curve = sorted((step, value) for key, step, value in points(published.run_id) if key == LOSS)
    assert curve == [(min(100 * (n + 1), steps), -n) for n in range(-(-steps // 100))]
    assert run_of(store, published).data.metrics["val/accuracy"]
