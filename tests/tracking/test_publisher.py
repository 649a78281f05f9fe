"""The publisher works between windows only, and MLflow's errors do not affect the run."""

import os
import re
import shutil
import socket
import sqlite3
import threading
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace

import pytest
from project import wait_until
from sqlalchemy import Engine, event
from tracking.conftest import change_record, runs_of, statuses_of

from epochmeter.shared.process_identity import this_process
from epochmeter.tracking import deadline, queue, views
from epochmeter.tracking import publisher as publishers
from epochmeter.tracking.client import Destination, Store, destination_of
from epochmeter.tracking.load import run_links
from epochmeter.tracking.mlflow_process import MlflowProcess
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


def test_hanging_call_delays_no_window_is_not_repeated_and_the_next_run_waits_for_it(
    make_record, store, open_by, monkeypatch
):
    monkeypatch.setattr(deadline, "LAST_READ_S", 0.1)
    released, calls = threading.Event(), []

    def hang():
        calls.append("earlier")
        try:
            released.wait(LONG_S)  # cannot be interrupted, like a query of a database
        finally:
            calls.append("earlier ended")
        return store

    open_by(hang)
    earlier = Tracker(make_record(0), SERVER)
    earlier.start()
    for _ in range(3):
        earlier.flush(limit_s=0.05)
    assert "no answer within 0.1 s" in earlier.close(limit_s=0.1)
    assert calls == ["earlier"], "it still lasts, and nothing waited for it"
    open_by(lambda: calls.append("later") or store)
    later = Tracker(make_record(1), SERVER)
    later.start()
    threading.Timer(0.3, released.set).start()
    later.flush(limit_s=20)
    assert calls == ["earlier", "earlier ended", "later"]
    assert len(runs_of(store)) == 1


def test_windows_are_published_beside_a_script_which_does_not_wait(make_queued, store, open_by):
    released, calls = threading.Event(), []
    open_by(lambda: calls.append(released.wait(LONG_S)) or store)
    tracker = Tracker(make_queued(0, state=None, **this_process()._asdict()), SERVER)
    tracker.publish_beside(LONG_S)
    tracker.publish_beside(LONG_S)  # the first call lasts
    assert calls == [], "nothing waited for it"
    released.set()
    assert wait_until(lambda: [run.data.tags.get("epochmeter.windows") for run in runs_of(store)] == ["6"], LONG_S)
    assert calls == [True]


def test_publishing_between_windows_takes_a_fiftieth_of_the_time_at_most(make_record, monkeypatch):
    clock, flushed_s = [100.0], []
    tracker = Tracker(make_record(0))

    def flush():
        flushed_s.append(clock[0])
        clock[0] += 0.1

    monkeypatch.setattr(publishers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(tracker, "flush", flush)
    for _ in range(60):
        tracker.follow()
        clock[0] += 0.2
    assert flushed_s == pytest.approx([100, 105.1, 110.2])


@contextmanager
def trickling_server():
    """Answer each request by one byte per 0.2 s, for hours; yield the address, and the requests.

    What waits for an answer does not end.
    """
    requests = []

    def trickle(connection):
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            requests.append(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n")
            while not ended.wait(0.2):
                connection.sendall(b" ")

    def accept():
        with suppress(OSError):
            while True:
                threading.Thread(target=trickle, args=(server.accept()[0],), daemon=True).start()

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield Destination("epochmeter", f"http://127.0.0.1:{server.getsockname()[1]}"), requests
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)


def test_trickling_server_ends_neither_a_run_late_nor_delays_the_next(make_queued, make_record, queued_folders):
    assert publishers.CLOSE_LIMIT_S + publishers.REUSED_LIMIT_S <= 20, "bound of the delay at the end"
    with trickling_server() as (destination, requests):
        tracker = Tracker(make_queued(0), destination)
        tracker.start()
        wait_until(lambda: requests)  # MLflow is loaded, and its request is not answered
        assert "no answer within 0.5 s\n" in tracker.close(0.5)
        assert Tracker(make_record(1)).wait_for_previous(pytest.fail) == []
    assert queued_folders() == ["0"]


def test_trickling_server_delays_no_report(make_record, monkeypatch):
    with trickling_server() as (destination, _):
        process = MlflowProcess({"name": "mlflow", **destination._asdict()})
        with pytest.raises(TimeoutError, match=r"no answer within 0\.5 s"):
            process.call(0.5, run_links, ["sweep"], *destination)


def test_locked_database_is_one_warning_without_a_traceback(make_queued, template, tmp_path, capfd):
    database = shutil.copy(template / "mlflow.db", tmp_path)
    tracker = Tracker(make_queued(0), Destination("epochmeter", f"sqlite:///{database}"))
    tracker.start()
    tracker.flush(LONG_S)

    def wait_less(connection, cursor, statement, *execution):
        return statement.replace("busy_timeout = 20000", "busy_timeout = 100"), execution[0]

    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        event.listen(Engine, "before_cursor_execute", wait_less, retval=True)
        try:
            warning = tracker.close(LONG_S)
        finally:
            event.remove(Engine, "before_cursor_execute", wait_less)
    assert warning.splitlines()[0].endswith("published to MLflow: (sqlite3.OperationalError) database is locked")
    assert len(warning.splitlines()) == 2
    assert capfd.readouterr() == ("", "")


def test_offline_server_leaves_the_run_in_the_queue_with_a_warning(make_queued, queued_folders):
    publisher = Tracker(record := make_queued(0), OFFLINE)
    publisher.start()
    publisher.flush(LONG_S)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0", "no call waits for a server that is down"
    warning, hint = publisher.close().splitlines()
    assert re.search(r": request to http://127.0.0.1:9 failed: \[Errno 111\] \w+ \w+$", warning)
    assert hint.endswith(f"python src/publish.py --uri {OFFLINE.uri} {record.folder.parent}")
    assert queued_folders() == ["0"]


def test_queued_runs_of_the_same_destination_are_published_after_a_run(make_record, make_queued, store, queued_folders):
    make_queued(0)
    change_record(make_queued(1), {}, tracking={"name": "server", "experiment": "x", "uri": "http://b"})
    make_queued(2, state=None, **this_process()._asdict())
    change_record(make_queued(3), {}, tracking={"name": "none", "experiment": "x"})
    close(make_record(9))
    folders = {run.data.tags["epochmeter.folder"].rpartition("/")[2] for run in runs_of(store)}
    assert (folders, queued_folders()) == ({"0", "9"}, ["1", "2", "3"])


def test_superseded_attempt_leaves_the_queue_unpublished(make_queued, store, queued_folders):
    attempt = make_queued(0, state="failed")
    later = attempt.job(), {**attempt.run(), "record_id": "of the later attempt"}
    attempt.archive_attempt()
    attempt.describe(*later)
    assert queued_folders() == ["attempt1"]
    assert publish_pending(queue.multirun_of(make_queued(1)), MLFLOW, LONG_S) is None
    assert queued_folders() == []
    assert [run.data.tags["epochmeter.folder"].rpartition("/")[2] for run in runs_of(store)] == ["1"]


def test_refused_record_does_not_block_others(make_record, make_queued, queued_folders, monkeypatch):
    """A line of the first record in the queue is damaged: which steps those after it have is not known."""
    pending_runs = queue.pending_runs
    in_order = lambda multirun: sorted(pending_runs(multirun), key=lambda record: record.folder)  # noqa: E731
    monkeypatch.setattr(queue, "pending_runs", in_order)
    window = {"window": "epoch", "epoch": 2**70, "opened_ns": 1, "closed_ns": 2, "metrics": {"epoch/e2e_s": 1.0}}
    make_queued(0, epochs=0).append(window)
    make_queued(1)
    close(make_record(9))
    assert queued_folders() == ["0"]
    assert "epochs.jsonl: 1 unreadable line" in publish_pending(queue.multirun_of(make_queued(2)), MLFLOW, LONG_S)
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


def test_views_at_the_end_of_a_run_show_it_without_another_search(make_queued, store, monkeypatch):
    searches, find_runs = [], views.find_runs
    monkeypatch.setattr(views, "find_runs", lambda *args: searches.append(args) or find_runs(*args))
    record = make_queued(0, state=None, **this_process()._asdict())
    tracker = Tracker(record, destination_of(MLFLOW))
    tracker.start()
    tracker.flush(limit_s=LONG_S)
    before = store.client.get_experiment(store.experiment_id).tags
    record.write_summary({"state": "completed", "metrics": {views.ENERGY: 5.0}}, "identity")
    assert tracker.close(LONG_S, ended="completed").run_id
    after = store.client.get_experiment(store.experiment_id).tags
    key = views.VIEW_TAG_PREFIX + views.ENERGY_AND_TIME
    assert len(searches) == 1
    assert before[key] != after[key] == views.views(None, find_runs(store, None))[views.ENERGY_AND_TIME]
