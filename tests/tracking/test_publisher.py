"""The publisher works between windows only, and MLflow's errors do not affect the run."""

import re
import threading
import time
from datetime import datetime
from types import SimpleNamespace

import pytest
from tracking.conftest import change_record, runs_of, statuses_of

from epochmeter.shared.process_identity import this_process
from epochmeter.tracking import publisher as publishers
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import Store, destination_of, open_store
from epochmeter.tracking.publish import publish
from epochmeter.tracking.publisher import Tracker, make_tracker, publish_pending

NOW = datetime.now().astimezone().isoformat()
DEAD = {"pid": 2**22 + 1}
LONG_S = 120  # time limit where the result matters and the speed does not
OFFLINE = "http://127.0.0.1:9"


@pytest.fixture
def queued_folders(tmp_path):
    """queued_folders() -> the numbers of the queued runs."""
    return lambda: sorted(record.folder.name for record in queue.pending_runs(tmp_path / "multirun"))


@pytest.fixture
def close(store, monkeypatch):
    """close(record) -> closes the publisher of a run, with as much time for queued runs as they need."""
    monkeypatch.setattr(publishers, "CATCH_UP_LIMIT_S", LONG_S)
    return lambda record: Tracker(record, lambda: store, destination_of(record.job()["tracking"])).close(LONG_S)


@pytest.mark.parametrize("name", ["mlflow", "none"])
def test_trackers_can_be_started_flushed_and_closed(make_queued, queued_folders, store, monkeypatch, name):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
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
    dead = publish(make_record(1, state=None, **DEAD), store)
    store.client.update_run(dead.run_id, status="RUNNING")
    record = make_queued(0, state=None, started=NOW, **this_process()._asdict())
    publisher = Tracker(record, lambda: store)
    publisher.start()
    publisher.flush(limit_s=LONG_S)
    assert statuses_of(store) == ["KILLED", "RUNNING"]
    publisher.close(LONG_S, ended="failed")
    assert statuses_of(store) == ["FAILED", "KILLED"]
    assert queued_folders() == ["0"], "the next command closes it"


def test_later_run_waits_for_an_earlier_runs_last_call(make_record, store):
    released, calls = threading.Event(), []

    def hang():
        calls.append("earlier")
        released.wait(10)
        calls.append("earlier ended")
        return store

    earlier = Tracker(make_record(0), hang)
    earlier.start()
    assert "no answer" in earlier.close(limit_s=0.1)
    later = Tracker(make_record(1), lambda: calls.append("later") or store)
    later.start()
    threading.Timer(0.3, released.set).start()
    later.flush(limit_s=20)
    assert calls == ["earlier", "earlier ended", "later"]
    assert len(runs_of(store)) == 1


def test_hanging_call_delays_no_window_and_is_not_repeated(make_record):
    released, opened = threading.Event(), []

    def hang():
        opened.append(1)
        released.wait(10)
        raise OSError("gone")

    publisher = Tracker(make_record(), hang)
    publisher.start()
    started = time.monotonic()
    for _ in range(3):
        publisher.flush(limit_s=0.05)
    assert "no answer within 0.05 s" in publisher.close(limit_s=0.05)
    assert time.monotonic() - started < 3
    assert opened == [1]
    released.set()


def test_offline_server_leaves_the_run_in_the_queue_with_a_warning(make_queued, queued_folders):
    record = make_queued(0)
    publisher = Tracker(record, lambda: open_store(uri=OFFLINE))
    publisher.start()
    publisher.flush()
    assert re.search(f"127.0.0.1.*python src/publish.py {record.folder}$", publisher.close(), re.DOTALL)
    assert queued_folders() == ["0"]


def test_queued_runs_of_the_same_destination_are_published_after_a_run(
    make_record, make_queued, store, close, queued_folders
):
    make_queued(0)
    change_record(make_queued(1), {}, tracking={"name": "server", "experiment": "x", "uri": "http://b"})
    make_queued(2, state=None, **this_process()._asdict())
    change_record(make_queued(3), {}, tracking={"name": "none", "experiment": "x"})
    close(make_record(9))
    folders = {run.data.tags["epochmeter.folder"].rpartition("/")[2] for run in runs_of(store)}
    assert (folders, queued_folders()) == ({"0", "9"}, ["1", "2", "3"])


def test_refused_record_does_not_block_others(make_record, make_queued, store, close, queued_folders, monkeypatch):
    """The step of the first record in the queue is too large for a database."""
    pending_runs = queue.pending_runs
    in_order = lambda multirun: sorted(pending_runs(multirun), key=lambda record: record.folder)  # noqa: E731
    monkeypatch.setattr(queue, "pending_runs", in_order)
    window = {"window": "epoch", "epoch": 2**70, "opened_ns": 1, "closed_ns": 2, "metrics": {"epoch/e2e_s": 1.0}}
    make_queued(0, epochs=0).append(window)
    make_queued(1)
    close(make_record(9))
    assert queued_folders() == ["0"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    queued = make_queued(2)
    assert "too large" in publish_pending(queue.multirun_of(queued), queued.job()["tracking"], LONG_S)
    assert queued_folders() == ["0"]


def test_offline_server_is_tried_once_for_all_queued_runs(make_record, make_queued, monkeypatch):
    calls = []

    def offline(*_):
        calls.append(1)
        raise OSError("no answer")

    for number in range(5):
        make_queued(number)
    record = make_record(9)
    store = Store(SimpleNamespace(get_experiment=offline), "", "1")
    publisher = Tracker(record, lambda: store, destination_of(record.job()["tracking"]))
    monkeypatch.setattr(publishers, "publish", offline)
    assert publisher.publish_pending(LONG_S) == "no answer"
    assert len(calls) == 2, "one record, and a check whether the server is down"


def test_queue_is_published_when_no_run_is_measured(make_queued, store, monkeypatch, queued_folders):
    queued = make_queued(0)
    multirun, tracking = queue.multirun_of(queued), queued.job()["tracking"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", OFFLINE)
    assert re.search("127.0.0.1.*make publish$", publish_pending(multirun, tracking), re.DOTALL)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    assert publish_pending(multirun, tracking, LONG_S) is None
    assert queued_folders() == []
    assert publish_pending(multirun, tracking) is None


def test_measuring_waits_for_an_earlier_runs_last_call_or_has_a_note(make_record, monkeypatch):
    monkeypatch.setattr(publishers, "NOTICE_S", 0.01)
    publisher = Tracker(make_record())
    publishers.PUBLISH_LOCK.acquire()
    assert publisher.wait_for_previous(lambda message: publishers.PUBLISH_LOCK.release()) == []
    monkeypatch.setattr(publishers, "PREVIOUS_LIMIT_S", 0.02)
    with publishers.PUBLISH_LOCK:
        (note,) = publisher.wait_for_previous(print)
    assert "after 0.02 s" in note


def test_error_is_shown_without_its_password(make_record):
    def offline():
        raise OSError("cannot reach http://ann:hunter2@tracker:5000/api")

    assert "http://***@tracker:5000/api" in Tracker(make_record(), offline).close()
