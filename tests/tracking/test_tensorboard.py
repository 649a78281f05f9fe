"""Event files, read back by TensorBoard's reader, have the same scalars as MLflow."""

import json

import pytest

from epochmeter.results.metrics import find
from epochmeter.results.run_folder import RunFolder
from epochmeter.tracking import tensorboard
from epochmeter.tracking.publish import Published, publish
from epochmeter.tracking.publisher import make_tracker
from epochmeter.tracking.run_export import EVENTS, Scalar, ended_s
from epochmeter.tracking.tensorboard import Events

pytest.importorskip("tensorboard", reason="no tensorboard in this environment: make .venv/.with-tensorboard")


def event_files(record):
    return list(record.folder.glob(f"{EVENTS}*"))


def scalars_of(record):
    """Every scalar of the run's one event file; values are of 32 bits there."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    (path,) = event_files(record)
    return [
        Scalar(value.tag, make_ndarray(value.tensor).item(), round(event.wall_time * 1000), event.step)
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def test_file_has_the_scalars_and_steps_of_mlflow(store, make_record, points):
    record = make_record()
    record.append_power([100 * 10**9 + 10**6 * ms for ms in (0, 5)], {"total": [10.0, 12.0]})
    record.append_gauges(("monotonic_ns", "cpu_utilization"), [{"monotonic_ns": 100 * 10**9, "cpu_utilization": 0.5}])
    Events(record).finish()
    shown = [(scalar.name, scalar.step, pytest.approx(scalar.value, rel=1e-6)) for scalar in scalars_of(record)]
    run_id, ended = publish(record, store).run_id, ended_s(RunFolder(record.folder))
    assert sorted(points(run_id)) == sorted(shown, key=lambda point: point[:2])
    assert ended_s(RunFolder(record.folder)) == ended, "the file is not part of the record"
    assert not [file.path for file in store.client.list_artifacts(run_id) if file.path.startswith(EVENTS)]


def test_the_first_event_of_a_metric_has_its_meaning(make_record):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    record = make_record(epochs=2)
    Events(record).finish()
    (path,) = event_files(record)
    meanings = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            meanings.setdefault(value.tag, []).append(value.metadata.summary_description)
    assert meanings["epoch/e2e_s"] == [find("epoch/e2e_s").meaning, ""]
    assert all(first == find(name).meaning for name, (first, *_) in meanings.items())


def test_curves_grow_during_the_run_and_end_with_what_a_resumed_run_keeps(make_record):
    record = make_record(epochs=2, state=None)
    path = record.folder / "epochs.jsonl"
    every, events = path.read_text().splitlines(keepends=True), Events(record)
    events.open()
    for count, writer in [*((count, events) for count in range(len(every) + 1)), (2, Events(record))]:
        path.write_text("".join(every[:count]))
        writer.add()
        ends = [scalar.step for scalar in scalars_of(record) if scalar.name.endswith("/e2e_s")]
        assert ends == [json.loads(line)["epoch"] for line in every[:count]]
    events.finish()


@pytest.mark.parametrize("is_set", [False, True])
def test_event_files_need_the_setting_and_the_package(make_record, monkeypatch, is_set):
    record = make_record()
    tracker = make_tracker(record, name="none", tensorboard=is_set)
    tracker.open()
    tracker.flush()
    assert tracker.close() is None
    assert len(event_files(record)) == is_set
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"hint: install it: `make .*\.venv/\.with-tensorboard`"):
        tensorboard.check_tensorboard({"tensorboard": True})
    tensorboard.check_tensorboard({"tensorboard": False})


def test_full_disk_ends_only_the_file(store, make_record, monkeypatch, caplog):
    monkeypatch.setattr(Events, "add", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    tracker = make_tracker(make_record(), tensorboard=True, name="mlflow")
    tracker.open()
    for _ in range(2):
        tracker.flush(60)
    assert isinstance(tracker.close(60), Published)
    assert [record.message for record in caplog.records] == [
        "TensorBoard does not show all of this run: [Errno 28] No space left on device"
    ]
