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
        queue.put(record, record.run()["record_id"])
        return record

    return made


def folders(multirun):
    return sorted(str(record.folder.relative_to(multirun)) for record in queue.waiting(multirun))


def test_a_run_waits_from_its_beginning_until_all_is_told_of_it(queued, multirun):
    assert folders(multirun) == []
    first, _ = queued(0), queued(1)
    assert folders(multirun) == ["sweep/0", "sweep/1"]
    queue.drop(first)
    queue.drop(first)
    assert folders(multirun) == ["sweep/1"]


@pytest.mark.parametrize("end", [None, "whole"], ids=["no summary", "a summary that no end followed"])
def test_a_run_whose_end_could_not_be_written_stays_for_who_closes_it(queued, multirun, end):
    record = queued(0, state=end)
    (record.folder / "whole.json").unlink(missing_ok=True)
    queue.drop(record)
    assert folders(multirun) == ["sweep/0"]


def test_a_run_that_a_later_attempt_set_aside_is_found_there_and_leaves_from_there(queued, multirun):
    record = queued(0)
    record.set_aside()
    (aside,) = queue.waiting(multirun)
    assert aside.folder == record.folder / "attempt1"
    queue.drop(aside)
    assert folders(multirun) == []


def test_a_run_whose_folder_was_removed_leaves_by_itself(queued, multirun):
    shutil.rmtree(queued(0).folder)
    assert folders(multirun) == []
    assert list((multirun / ".queue").iterdir()) == []


def test_a_run_that_died_before_its_record_told_of_it_leaves_by_itself(multirun, make_record):
    queue.put(make_record(0), "of which nothing is there")
    assert folders(multirun) == []
    assert list((multirun / ".queue").iterdir()) == []


def test_a_run_that_is_just_being_begun_stays(multirun, make_record):
    """A reader waits until the run's record exists."""
    record = Record(make_record(0).folder.with_name("1"))
    record.folder.mkdir()
    begun = threading.Event()

    def begin():
        with record.alone():
            queue.put(record, "new")
            begun.set()
            threading.Event().wait(0.3)
            record.describe({}, {"record_id": "new", "sweep_id": "sweep"})

    beginning = threading.Thread(target=begin)
    beginning.start()
    begun.wait()
    assert folders(multirun) == ["sweep/1"]
    beginning.join()


def test_the_queue_moves_with_the_folder_it_lies_in(queued, multirun):
    queued(0)
    assert folders(multirun.rename(multirun.with_name("copied"))) == ["sweep/0"]


def test_a_record_that_cannot_be_read_keeps_no_other_from_being_found(queued, multirun):
    (queued(0).folder / "job.json").write_text("{half")
    queued(1)
    assert folders(multirun) == ["sweep/1"]


def test_a_run_begins_also_where_nothing_can_be_noted(make_record, multirun):
    record = make_record(0)
    (multirun / ".queue").write_text("in the way")
    queue.put(record, "new")
    queue.drop(record)
    assert folders(multirun) == []
