"""The queue of runs to be published."""

import shutil
import threading

import pytest
from metadata import RUN

from epochmeter.shared.record import Record
from epochmeter.tracking import queue


@pytest.fixture
def multirun(tmp_path):
    return tmp_path / "multirun"


def folders(multirun):
    return sorted(str(record.folder.relative_to(multirun)) for record in queue.pending_runs(multirun))


def test_run_is_queued_until_its_end_and_published_also_if_archived_or_moved(make_queued, multirun):
    assert folders(multirun) == []
    records = [make_queued(0), make_queued(1), make_queued(2, state=None), make_queued(3)]
    (records[3].folder / "completed.json").unlink()
    records[1].archive_attempt()
    assert folders(multirun) == ["sweep/0", "sweep/1/attempt1", "sweep/2", "sweep/3"]
    for _ in range(2):
        for record in (records[0], *records[2:]):
            queue.dequeue(record)
    assert folders(multirun) == ["sweep/1/attempt1", "sweep/2", "sweep/3"]
    queue.dequeue(Record(multirun / "sweep/1/attempt1"))
    assert folders(multirun.rename(multirun.with_name("moved"))) == ["sweep/2", "sweep/3"]


def test_entries_without_a_record_are_removed_and_unreadable_ones_block_no_others(make_queued, make_record, multirun):
    shutil.rmtree(make_queued(0).folder)
    queue.enqueue(make_record(1), "of a process that was killed before it wrote a record")
    assert folders(multirun) == []
    assert list((multirun / ".queue").iterdir()) == []
    (make_queued(2).folder / "job.json").write_text("{half")
    make_queued(3)
    assert folders(multirun) == ["sweep/3"]


def test_reader_waits_for_the_record_of_a_starting_run(multirun, make_record):
    record = Record(make_record(0).folder.with_name("1"))
    record.folder.mkdir()
    is_locked = threading.Event()

    def start():
        with record.locked():
            queue.enqueue(record, "new")
            is_locked.set()
            threading.Event().wait(0.3)
            record.describe({}, {**RUN, "record_id": "new", "sweep_id": "sweep"})

    thread = threading.Thread(target=start)
    thread.start()
    is_locked.wait()
    assert folders(multirun) == ["sweep/1"]
    thread.join()
