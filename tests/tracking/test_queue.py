"""The queue names the runs of which something is still to be told, wherever their records are by now."""

import shutil
import threading

import pytest

from epochmeter.shared.record import Record
from epochmeter.tracking import queue


@pytest.fixture
def multirun(tmp_path):
    return tmp_path / "multirun"


@pytest.fixture
def queued(make_record):
    """queued(0, ...) -> a record of that number, in the queue."""

    def made(number=0, **asked):
        record = make_record(number, **asked)
        queue.enqueue(record, record.run()["record_id"])
        return record

    return made


def folders(multirun):
    return sorted(str(record.folder.relative_to(multirun)) for record in queue.pending_runs(multirun))


def test_run_is_queued_from_start_until_published(queued, multirun):
    assert folders(multirun) == []
    first, _ = queued(0), queued(1)
    assert folders(multirun) == ["sweep/0", "sweep/1"]
    queue.dequeue(first)
    queue.dequeue(first)
    assert folders(multirun) == ["sweep/1"]


@pytest.mark.parametrize("end", [None, "completed"], ids=["no summary", "a summary that no end followed"])
def test_run_without_a_recorded_end_stays(queued, multirun, end):
    record = queued(0, state=end)
    (record.folder / "completed.json").unlink(missing_ok=True)
    queue.dequeue(record)
    assert folders(multirun) == ["sweep/0"]


def test_archived_run_is_found_and_removed(queued, multirun):
    record = queued(0)
    record.archive_attempt()
    (aside,) = queue.pending_runs(multirun)
    assert aside.folder == record.folder / "attempt1"
    queue.dequeue(aside)
    assert folders(multirun) == []


def test_run_with_a_deleted_folder_is_removed(queued, multirun):
    shutil.rmtree(queued(0).folder)
    assert folders(multirun) == []
    assert list((multirun / ".queue").iterdir()) == []


def test_run_that_died_before_its_record_is_removed(multirun, make_record):
    queue.enqueue(make_record(0), "of which nothing is there")
    assert folders(multirun) == []
    assert list((multirun / ".queue").iterdir()) == []


def test_starting_run_stays(multirun, make_record):
    """A reader waits until the run's record exists."""
    record = Record(make_record(0).folder.with_name("1"))
    record.folder.mkdir()
    begun = threading.Event()

    def begin():
        with record.locked():
            queue.enqueue(record, "new")
            begun.set()
            threading.Event().wait(0.3)
            record.describe({}, {"record_id": "new", "sweep_id": "sweep"})

    beginning = threading.Thread(target=begin)
    beginning.start()
    begun.wait()
    assert folders(multirun) == ["sweep/1"]
    beginning.join()


def test_queue_can_be_moved_with_its_folder(queued, multirun):
    queued(0)
    assert folders(multirun.rename(multirun.with_name("copied"))) == ["sweep/0"]


def test_unreadable_record_does_not_block_others(queued, multirun):
    (queued(0).folder / "job.json").write_text("{half")
    queued(1)
    assert folders(multirun) == ["sweep/1"]


def test_unwritable_queue_does_not_block_a_run(make_record, multirun):
    record = make_record(0)
    (multirun / ".queue").write_text("in the way")
    queue.enqueue(record, "new")
    queue.dequeue(record)
    assert folders(multirun) == []
