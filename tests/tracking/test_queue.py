"""The queue of runs to be published."""

import shutil
import threading

import pytest

from epochmeter.shared.record import Record
from epochmeter.tracking import queue


@pytest.fixture
def multirun(tmp_path):
    return tmp_path / "multirun"


def folders(multirun):
    return sorted(str(record.folder.relative_to(multirun)) for record in queue.pending_runs(multirun))


def test_run_is_queued_until_it_is_published_also_if_the_folder_is_moved(make_queued, multirun):
    assert folders(multirun) == []
    first, _ = make_queued(0), make_queued(1)
    assert folders(multirun) == ["sweep/0", "sweep/1"]
    queue.dequeue(first)
    queue.dequeue(first)
    assert folders(multirun.rename(multirun.with_name("moved"))) == ["sweep/1"]


def test_run_without_a_recorded_end_stays(make_queued, multirun):
    without_summary, with_summary = make_queued(0, state=None), make_queued(1)
    (with_summary.folder / "completed.json").unlink()
    for record in (without_summary, with_summary):
        queue.dequeue(record)
    assert folders(multirun) == ["sweep/0", "sweep/1"]


def test_archived_run_is_found_and_removed(make_queued, multirun):
    record = make_queued(0)
    record.archive_attempt()
    (archived,) = queue.pending_runs(multirun)
    assert archived.folder == record.folder / "attempt1"
    queue.dequeue(archived)
    assert folders(multirun) == []


def test_entries_without_a_record_are_removed_and_an_unreadable_record_blocks_no_others(
    make_queued, make_record, multirun
):
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
            record.describe({}, {"record_id": "new", "sweep_id": "sweep"})

    thread = threading.Thread(target=start)
    thread.start()
    is_locked.wait()
    assert folders(multirun) == ["sweep/1"]
    thread.join()
