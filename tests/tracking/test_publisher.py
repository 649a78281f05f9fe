"""The publisher works between windows only, and MLflow's errors do not affect the run."""

import re
import threading
import time
from types import SimpleNamespace

import pytest
from tracking.conftest import change_record, runs_of, statuses_of

from epochmeter.shared.process_identity import this_process
from epochmeter.tracking import publisher as publishers
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import Destination, Store, destination_of
from epochmeter.tracking.publish import publish
from epochmeter.tracking.publisher import Tracker, make_tracker, publish_pending

LONG_S = 120  # time limit where the result matters and the speed does not
MLFLOW = {"name": "mlflow", "experiment": "epochmeter"}
OFFLINE = Destination("epochmeter", "http://127.0.0.1:9")
SERVER = Destination("epochmeter", "http://tracker:5000")


@pytest.fixture(autouse=True)
def _uri(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setattr(publishers, "CATCH_UP_LIMIT_S", LONG_S)


@pytest.fixture
def queued_folders(tmp_path):
    """queued_folders() -> the numbers of the queued runs."""
    return lambda: sorted(record.folder.name for record in queue.pending_runs(tmp_path / "multirun"))


@pytest.fixture
def open_by(monkeypatch):
    """open_by(function) -> all trackers open their destination by it."""
    return lambda function: monkeypatch.setattr(publishers, "open_store", lambda *_: function())


def close(record):
    """Close the tracker of a run, with as much time for it and for queued runs as they need."""
    return Tracker(record, destination_of(MLFLOW)).close(LONG_S)


@pytest.mark.parametrize("name", ["mlflow", "none"])
def test_trackers_can_be_started_flushed_and_closed(make_queued, queued_folders, store, name):
    tracker = make_tracker(make_queued(0), name=name)
    tracker.start()
    tracker.flush(limit_s=LONG_S)
    published = tracker.close(limit_s=LONG_S, ended="completed")
    assert statuses_of(store) == (["FINISHED"] if published else [])
    assert (published is None) == (name == "none")
    saved = store.client.get_experiment(store.experiment_id).tags
    assert (views.VIEW_TAG_PREFIX + views.ENERGY_AND_TIME in saved) == (name == "mlflow")
    assert queued_folders() == []


def test_end_that_could_not_be_recorded_is_the_controllers(make_queued, make_record, store, queued_folders):
    """Dead runs are ended before its first window."""
    dead = publish(make_record(1, state=None, pid=2**22 + 1), store)
    store.client.update_run(dead.run_id, status="RUNNING")
    publisher = Tracker(make_queued(0, state=None, **this_process()._asdict()), destination_of(MLFLOW))
    publisher.start()
    publisher.flush(limit_s=LONG_S)
    assert statuses_of(store) == ["KILLED", "RUNNING"]
    publisher.close(LONG_S, ended="failed")
    assert statuses_of(store) == ["FAILED", "KILLED"]
    assert queued_folders() == ["0"], "the next command closes it"


def test_hanging_call_delays_no_window_is_not_repeated_and_the_next_run_waits_for_it(make_record, store, open_by):
    released, calls = threading.Event(), []

    def hang():
        calls.append("earlier")
        released.wait(10)
        calls.append("earlier ended")
        return store

    open_by(hang)
    earlier = Tracker(make_record(0), SERVER)
    earlier.start()
    started = time.monotonic()
    for _ in range(3):
        earlier.flush(limit_s=0.05)
    assert "no answer within 0.1 s" in earlier.close(limit_s=0.1)
    assert time.monotonic() - started < 3
    open_by(lambda: calls.append("later") or store)
    later = Tracker(make_record(1), SERVER)
    later.start()
    threading.Timer(0.3, released.set).start()
    later.flush(limit_s=20)
    assert calls == ["earlier", "earlier ended", "later"]
    assert len(runs_of(store)) == 1


def test_offline_server_leaves_the_run_in_the_queue_with_a_warning(make_queued, queued_folders):
    publisher, started = Tracker(record := make_queued(0), OFFLINE), time.monotonic()
    publisher.start()
    publisher.flush(LONG_S)
    assert time.monotonic() - started < 2
    warning, hint = publisher.close().splitlines()
    assert re.search(r": request to http://127.0.0.1:9 failed: \[Errno 111\] \w+ \w+$", warning)
    assert hint.endswith(f"python src/publish.py {record.folder.parent}")
    assert queued_folders() == ["0"]


def test_queued_runs_of_the_same_destination_are_published_after_a_run(make_record, make_queued, store, queued_folders):
    make_queued(0)
    change_record(make_queued(1), {}, tracking={"name": "server", "experiment": "x", "uri": "http://b"})
    make_queued(2, state=None, **this_process()._asdict())
    change_record(make_queued(3), {}, tracking={"name": "none", "experiment": "x"})
    close(make_record(9))
    folders = {run.data.tags["epochmeter.folder"].rpartition("/")[2] for run in runs_of(store)}
    assert (folders, queued_folders()) == ({"0", "9"}, ["1", "2", "3"])


def test_refused_record_does_not_block_others(make_record, make_queued, queued_folders, monkeypatch):
    """The step of the first record in the queue is too large for a database."""
    pending_runs = queue.pending_runs
    in_order = lambda multirun: sorted(pending_runs(multirun), key=lambda record: record.folder)  # noqa: E731
    monkeypatch.setattr(queue, "pending_runs", in_order)
    window = {"window": "epoch", "epoch": 2**70, "opened_ns": 1, "closed_ns": 2, "metrics": {"epoch/e2e_s": 1.0}}
    make_queued(0, epochs=0).append(window)
    make_queued(1)
    close(make_record(9))
    assert queued_folders() == ["0"]
    assert "too large" in publish_pending(queue.multirun_of(make_queued(2)), MLFLOW, LONG_S)
    assert queued_folders() == ["0"]


def test_offline_server_is_tried_once_for_all_queued_runs(make_record, make_queued, monkeypatch, open_by):
    calls = []

    def offline(*_):
        calls.append(1)
        raise OSError("no answer")

    (multirun,) = {queue.multirun_of(make_queued(number)) for number in range(5)}
    open_by(lambda: Store(SimpleNamespace(get_experiment=offline), "", "1"))
    monkeypatch.setattr(publishers, "publish", offline)
    assert "yet: no answer\n" in publish_pending(multirun, MLFLOW, LONG_S)
    assert len(calls) == 2, "one record, and a check whether the server is down"


def test_queue_is_published_when_no_run_is_measured(make_queued, store, monkeypatch, queued_folders):
    multirun = queue.multirun_of(make_queued(0))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", OFFLINE.uri)
    assert re.search("127.0.0.1.*make publish$", publish_pending(multirun, MLFLOW), re.DOTALL)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    for _ in range(2):
        assert publish_pending(multirun, MLFLOW, LONG_S) is None
        assert queued_folders() == []


def test_measuring_waits_for_an_earlier_runs_last_call_or_has_a_note(make_record, monkeypatch):
    monkeypatch.setattr(publishers, "NOTICE_S", 0.01)
    publisher = Tracker(make_record())
    publishers.PUBLISH_LOCK.acquire()
    assert publisher.wait_for_previous(lambda message: publishers.PUBLISH_LOCK.release()) == []
    monkeypatch.setattr(publishers, "PREVIOUS_LIMIT_S", 0.02)
    with publishers.PUBLISH_LOCK:
        (note,) = publisher.wait_for_previous(print)
    assert "after 0.02 s" in note


def test_error_is_shown_without_its_password(make_record, open_by):
    open_by(lambda: (_ for _ in ()).throw(OSError("cannot reach http://ann:hunter2@tracker:5000/api")))
    assert "http://***@tracker:5000/api" in Tracker(make_record(), SERVER).close()
