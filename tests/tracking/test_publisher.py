"""A publisher works between windows only, and whatever MLflow does, the run goes on."""

import sqlite3
import threading
import time
from datetime import datetime
from queue import Queue
from types import SimpleNamespace

import pytest

from epochmeter.machine.process_identity import this_process
from epochmeter.tracking import publisher as publishers
from epochmeter.tracking import queue, views
from epochmeter.tracking.client import destination_of, open_store
from epochmeter.tracking.publish import Published, publish
from epochmeter.tracking.publisher import NullTracker, Publisher, make_tracker, publish_pending

NOW = datetime.now().astimezone().isoformat()
GONE = {"pid": 2**22 + 1}
PATIENT_S = 120
"""Where what is done counts, on whatever machine, and not how fast."""


def quiet(calls: list) -> int:
    """How many calls were made; none is made any more."""
    time.sleep(0.1)  # the one call in flight
    seen = len(calls)
    time.sleep(0.1)
    assert len(calls) == seen
    return seen


@pytest.fixture(params=["mlflow", "none"])
def either(request, make_record, store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    return make_tracker(make_record(), name=request.param)


def test_every_publisher_can_be_started_asked_and_closed(either):
    either.start()
    either.flush(limit_s=5)
    assert isinstance(either.close(limit_s=20, ended="completed"), Published | None)


def test_a_run_is_published_by_its_end(make_record, store):
    publisher = Publisher(make_record(), lambda: store)
    publisher.start()
    publisher.flush()
    published = publisher.close()
    assert isinstance(published, Published)
    assert store.client.get_run(published.run_id).info.status == "FINISHED"


def test_a_run_that_failed_before_its_publisher_began_is_shown_as_failed(make_record, store):
    published = Publisher(make_record(state="failed"), lambda: store).close()
    assert isinstance(published, Published)
    assert store.client.get_run(published.run_id).info.status == "FAILED"


def test_a_publisher_ends_the_earlier_runs_whose_process_died(make_record, store):
    stale = publish(make_record(0, pid=2**22 + 1, state=None), store)
    store.client.update_run(stale.run_id, status="RUNNING")
    Publisher(make_record(1), lambda: store).close()
    assert store.client.get_run(stale.run_id).info.status == "KILLED"


def test_a_run_whose_end_could_not_be_written_is_shown_as_the_steward_saw_it_end(make_record, store):
    record = make_record(state=None, boot_id=None, started=NOW)
    queue.enqueue(record, record.run()["record_id"])
    publisher = Publisher(record, lambda: store)
    publisher.start()
    publisher.flush(limit_s=20)
    published = publisher.close(ended="failed")
    assert isinstance(published, Published)
    assert store.client.get_run(published.run_id).info.status == "FAILED"
    assert any(queue.pending_runs(queue.multirun_of(record))), "who starts next is to close it"


def test_the_views_and_the_ends_of_dead_runs_are_there_before_the_first_window(make_record, store):
    stale = publish(make_record(0, pid=2**22 + 1, state=None), store)
    store.client.update_run(stale.run_id, status="RUNNING")
    publisher = Publisher(make_record(1, state=None, started=NOW), lambda: store)
    publisher.start()
    publisher.flush(limit_s=PATIENT_S)
    assert store.client.get_run(stale.run_id).info.status == "KILLED"
    saved = store.client.get_experiment(store.experiment_id).tags[views.VIEW_TAG_PREFIX + views.ENERGY_AND_TIME]
    assert saved == views.views("energy_j")[views.ENERGY_AND_TIME]


def test_dead_runs_are_ended_within_the_deadline_and_the_rest_the_next_time(make_record, store, monkeypatch):
    ended = []

    def slow(store):
        for run in range(100):
            time.sleep(0.02)
            ended.append(run)
            yield run

    shown = Published("run", "1", store.uri)
    monkeypatch.setattr(publishers, "publish_steps", lambda *_: iter([shown]))
    monkeypatch.setattr(views, "save_views_steps", lambda *_: iter(()))
    monkeypatch.setattr(publishers, "close_dead_runs_steps", slow)
    publisher = Publisher(make_record(), lambda: store)
    publisher.start()
    publisher.flush(limit_s=1)
    seen = quiet(ended)
    assert 0 < seen < 100
    assert publisher.close(limit_s=0.5) == shown
    assert seen < quiet(ended) < 200


def test_a_later_run_waits_for_an_earlier_ones_last_call_before_its_first_window(make_record, store, monkeypatch):
    released, called = threading.Event(), []

    def hang():
        called.append("earlier")
        released.wait(10)
        called.append("earlier ended")
        return store

    earlier = Publisher(make_record(0), hang)
    earlier.start()
    assert "no answer" in earlier.close(limit_s=0.1)
    later = Publisher(make_record(1), lambda: called.append("later") or store)
    later.start()
    threading.Timer(0.3, released.set).start()
    later.flush(limit_s=20)
    assert called == ["earlier", "earlier ended", "later"]
    assert len(store.client.search_runs([store.experiment_id])) == 1


def test_tracking_none_opens_no_store_and_shows_nothing(make_record):
    unpublished = make_tracker(make_record(), name="none")
    assert isinstance(unpublished, NullTracker)
    assert unpublished.close() is None


def test_a_publisher_keeps_still_until_it_is_asked_again(make_record, monkeypatch):
    called, others = threading.Event(), set(threading.enumerate())

    def endless(record, store, ended):
        while True:
            time.sleep(0.001)
            called.set()
            yield None

    monkeypatch.setattr(publishers, "publish_steps", endless)
    publisher = Publisher(make_record(), lambda: None)
    publisher.start()
    assert called.wait(PATIENT_S)
    publisher.flush(limit_s=0.1)
    for thread in set(threading.enumerate()) - others:
        thread.join(PATIENT_S)
        assert not thread.is_alive(), f"{thread.name} goes on"


def test_a_call_that_hangs_delays_no_window_and_is_not_asked_twice(make_record):
    released, opened = threading.Event(), []

    def hang():
        opened.append(1)
        released.wait(10)
        raise OSError("gone")

    publisher = Publisher(make_record(), hang)
    publisher.start()
    started = time.monotonic()
    for _ in range(3):
        publisher.flush(limit_s=0.05)
    assert "no answer within 0.05 s" in publisher.close(limit_s=0.05)
    assert time.monotonic() - started < 3
    assert opened == [1]
    released.set()


def test_a_server_that_is_away_harms_nothing_and_the_warning_says_what_to_do(make_record):
    record = make_record()
    publisher = Publisher(record, lambda: open_store(uri="http://127.0.0.1:9"))
    publisher.start()
    publisher.flush()
    warning = publisher.close()
    assert "127.0.0.1" in warning
    assert f"python src/publish.py {record.folder}" in warning
    assert warning.count("\n") == 1, "a line and its hint"


@pytest.mark.system
def test_a_locked_database_harms_nothing_and_is_caught_up_with_when_free(make_record, store):
    record = make_record()
    with sqlite3.connect(store.uri.removeprefix("sqlite:///")) as other:
        other.execute("begin exclusive")
        publisher = Publisher(record, lambda: open_store(uri=store.uri))
        publisher.start()
        publisher.flush(limit_s=0.2)
        started = time.monotonic()
        assert "no answer within 1 s" in publisher.close(limit_s=1)
        assert time.monotonic() - started < 3
    assert isinstance(publisher.close(), Published)


def test_what_earlier_runs_left_while_the_server_was_away_is_published_by_the_next(make_record, store, monkeypatch):
    monkeypatch.setattr(publishers, "CATCH_UP_LIMIT_S", PATIENT_S)
    offline, whole = make_record(0, **GONE), make_record(1)
    for record in (offline, whole):
        queue.enqueue(record, record.run()["record_id"])
    assert isinstance(
        Publisher(whole, lambda: store, destination_of(whole.job()["tracking"])).close(PATIENT_S), Published
    )
    shown = store.client.search_runs([store.experiment_id])
    assert {run.data.tags["epochmeter.record_id"] for run in shown} == {
        record.run()["record_id"] for record in (offline, whole)
    }
    assert list(queue.pending_runs(queue.multirun_of(whole))) == []


@pytest.fixture
def refused(make_record):
    """A record that MLflow has no place for: its step is a number that no database takes."""
    record = make_record(0, epochs=0, **GONE)
    record.append({"window": "epoch", "epoch": 2**70, "opened_ns": 1, "closed_ns": 2, "metrics": {"epoch/e2e_s": 1.0}})
    queue.enqueue(record, record.run()["record_id"])
    return record


@pytest.fixture
def waiting_in_order(monkeypatch):
    """The queue in the order of the numbers of its runs, which is any on a disk."""
    entries = queue.pending_runs
    monkeypatch.setattr(
        queue, "pending_runs", lambda multirun: sorted(entries(multirun), key=lambda record: record.folder)
    )


@pytest.mark.usefixtures("waiting_in_order")
def test_one_that_mlflow_refuses_keeps_no_other_from_being_caught_up_with(make_record, store, refused, monkeypatch):
    monkeypatch.setattr(publishers, "CATCH_UP_LIMIT_S", PATIENT_S)
    offline, whole = make_record(1, **GONE), make_record(2)
    queue.enqueue(offline, offline.run()["record_id"])
    Publisher(whole, lambda: store, destination_of(whole.job()["tracking"])).close(PATIENT_S)
    assert [record.folder for record in queue.pending_runs(queue.multirun_of(whole))] == [refused.folder]


@pytest.mark.usefixtures("waiting_in_order")
def test_nor_where_nothing_is_measured_which_says_why_it_waits(make_record, store, refused, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    offline = make_record(1, **GONE)
    queue.enqueue(offline, offline.run()["record_id"])
    told = publish_pending(queue.multirun_of(offline), offline.job()["tracking"], PATIENT_S)
    assert "too large" in told
    assert [record.folder for record in queue.pending_runs(queue.multirun_of(offline))] == [refused.folder]


def test_a_server_that_went_away_is_not_waited_for_once_for_each_that_is_left(make_record, monkeypatch):
    def away(*_):
        asked.append("server")
        raise OSError("no answer")

    asked, whole = [], make_record(9)
    for number in range(5):
        left = make_record(number, **GONE)
        queue.enqueue(left, left.run()["record_id"])
    store = SimpleNamespace(client=SimpleNamespace(get_experiment=away), experiment_id="1")
    publisher = Publisher(whole, lambda: store, destination_of(whole.job()["tracking"]))
    monkeypatch.setattr(publishers, "publish_steps", away)
    assert publisher.publish_pending(PATIENT_S) == "no answer"
    assert asked == ["server"] * 2, "the first that was left, and whether it is the server's fault"


def test_what_is_meant_for_another_server_waits_for_it(make_record, store):
    other, whole = make_record(0, **GONE), make_record(1)
    other.describe({**other.job(), "tracking": {"name": "server", "experiment": "x", "uri": "http://b"}}, other.run())
    queue.enqueue(other, other.run()["record_id"])
    Publisher(whole, lambda: store, destination_of(whole.job()["tracking"])).close(PATIENT_S)
    assert len(store.client.search_runs([store.experiment_id])) == 1
    assert [record.folder for record in queue.pending_runs(queue.multirun_of(whole))] == [other.folder]


def test_a_run_that_is_under_way_is_left_to_who_measures_it(make_record, store):
    under_way, whole = make_record(0, state=None, **this_process()._asdict()), make_record(1)
    queue.enqueue(under_way, under_way.run()["record_id"])
    Publisher(whole, lambda: store, destination_of(whole.job()["tracking"])).close(PATIENT_S)
    assert len(store.client.search_runs([store.experiment_id])) == 1
    assert any(queue.pending_runs(queue.multirun_of(whole)))


def test_what_is_to_be_shown_nowhere_is_not_shown_by_who_has_no_place_either(make_record, store):
    private, whole = make_record(0, **GONE), make_record(1)
    for record in (private, whole):
        record.describe({**record.job(), "tracking": {"name": "none", "experiment": "x"}}, record.run())
    queue.enqueue(private, private.run()["record_id"])
    Publisher(whole, lambda: store, destination_of(whole.job()["tracking"])).close(PATIENT_S)
    assert len(store.client.search_runs([store.experiment_id])) == 1


def test_where_nothing_is_measured_what_is_left_is_shown_or_it_is_said_why_not(make_record, store, monkeypatch):
    left = make_record(0, **GONE)
    queue.enqueue(left, left.run()["record_id"])
    multirun, tracking = queue.multirun_of(left), left.job()["tracking"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    told = publish_pending(multirun, tracking)
    assert told.startswith("warning: earlier runs are not published to MLflow yet: ")
    assert "127.0.0.1" in told
    assert "once MLflow is available: make publish" in told
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    assert publish_pending(multirun, tracking, PATIENT_S) is None
    assert not any(queue.pending_runs(multirun))
    assert publish_pending(multirun, tracking) is None


def test_nothing_is_measured_while_an_earlier_runs_last_call_goes_on_which_is_told(make_record, monkeypatch):
    monkeypatch.setattr(publishers, "SETTLE_POLL_S", 0.01)
    told, noted = Queue(), Queue()
    with publishers.PUBLISH_LOCK:
        waiting = threading.Thread(target=lambda: noted.put(Publisher(make_record()).wait_for_previous(told.put)))
        waiting.start()
        assert told.get(timeout=60) == "Waiting up to 600 s until an earlier run is published to MLflow."
        assert noted.empty()
    assert noted.get(timeout=60) == []
    waiting.join()


def test_what_is_measured_beside_a_call_that_does_not_end_says_so(make_record, monkeypatch):
    monkeypatch.setattr(publishers, "SETTLE_POLL_S", 0.01)
    monkeypatch.setattr(publishers, "SETTLE_LIMIT_S", 0.02)
    with publishers.PUBLISH_LOCK:
        (note,) = Publisher(make_record()).wait_for_previous(print)
    assert note == "an earlier run was still being published to MLflow after 0.02 s, during this one."


def test_a_run_that_could_not_be_shown_stays_in_the_queue(make_record):
    record = make_record()
    queue.enqueue(record, record.run()["record_id"])
    assert "its record is complete" in Publisher(record, lambda: open_store(uri="http://127.0.0.1:9")).close()
    assert any(queue.pending_runs(queue.multirun_of(record)))


def test_a_run_that_is_to_be_shown_nowhere_leaves_the_queue_at_its_end(make_record):
    record = make_record()
    queue.enqueue(record, record.run()["record_id"])
    make_tracker(record, name="none").close()
    assert not any(queue.pending_runs(queue.multirun_of(record)))


def test_an_error_that_tells_a_password_is_told_without(make_record):
    def away():
        raise OSError("cannot reach http://ann:hunter2@tracker:5000/api")

    told = Publisher(make_record(), away).close()
    assert "http://***@tracker:5000/api" in told
