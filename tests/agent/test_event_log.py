"""The log of a thread: it outlives the process, never waits, and never fails on a full disk."""

import errno
import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from epochmeter.agent import event_log
from epochmeter.agent.event_log import EventLog
from epochmeter.segmentation.logs import ThreadLog
from epochmeter.shared.events import BATCH, LOST, RECORD, SEGMENT_RECORDS, STEP


def written(log, count, first=0):
    for number in range(first, first + count):
        log.write(STEP, number)


def numbers(events):
    return [event.time_ns for event in events if event.kind == STEP]


def test_events_are_read_in_order_over_several_files_which_are_forgotten(tmp_path):
    log, reader = EventLog(str(tmp_path), "7-0"), ThreadLog(tmp_path / "7-0")
    log.write(BATCH, 5, 3, 2.5, 7, 8, 9, 10, 11)
    assert [*reader.read(is_at_rest=True)] == [(5, 3, 2.5, 7, 8, 9, 10, 11, BATCH)]
    count = 2 * SEGMENT_RECORDS + 100
    written(log, count)
    assert numbers(reader.read(is_at_rest=True)) == [*range(count)]
    assert (reader.read_count, [path.name for path in reader.forget()]) == (2, ["7-0.0", "7-0.1"])
    assert reader.forget() == []
    reader.close()
    assert [path.name for path in reader.forget()] == ["7-0.2"]


def test_event_is_read_at_the_second_read_unless_the_process_is_at_rest(tmp_path):
    log, reader = EventLog(str(tmp_path), "7-0"), ThreadLog(tmp_path / "7-0")
    read = []
    for first in (0, 10, 20):
        written(log, 10, first)
        read.append(numbers(reader.read(is_at_rest=False)))
    assert read == [[], [*range(10)], [*range(10, 20)]]
    assert numbers(reader.read(is_at_rest=True)) == [*range(20, 30)]


def test_record_that_an_interrupted_write_left_empty_is_skipped(tmp_path):
    log, reader = EventLog(str(tmp_path), "7-0"), ThreadLog(tmp_path / "7-0")
    written(log, 3)
    next(log._offsets)
    written(log, 3, first=3)
    read = []
    for _ in range(5):
        read += numbers(reader.read(is_at_rest=False))
    assert read == [*range(6)]
    next(log._offsets)
    written(log, 2, first=6)
    assert numbers(reader.read(is_at_rest=True)) == [6, 7]


@pytest.mark.parametrize("end", ["os._exit(0)", f"os.kill(os.getpid(), {int(signal.SIGKILL)})"])
def test_events_of_a_process_that_ends_at_once_are_read(tmp_path, end):
    code = f"import os\nfrom epochmeter.agent.event_log import EventLog\nlog = EventLog({str(tmp_path)!r}, '7-0')\n"
    code += f"for number in range({SEGMENT_RECORDS + 10}):\n    log.write({STEP}, number)\n{end}"
    environment = {**os.environ, "PYTHONPATH": str(Path(event_log.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    reader = ThreadLog(tmp_path / "7-0")
    assert numbers(reader.read(is_at_rest=True)) == [*range(SEGMENT_RECORDS + 10)]


def test_events_on_a_full_disk_are_counted_as_lost_until_there_is_space(tmp_path, monkeypatch):
    log, reader = EventLog(str(tmp_path), "7-0"), ThreadLog(tmp_path / "7-0")

    def fail(*arguments):
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", fail)
        written(log, 2 * SEGMENT_RECORDS)
        assert [path.name for path in tmp_path.iterdir()] == ["7-0.0"]
    written(log, 10, first=2 * SEGMENT_RECORDS)
    events = [*reader.read(is_at_rest=True)]
    assert numbers(events) == [*range(SEGMENT_RECORDS), *range(2 * SEGMENT_RECORDS, 2 * SEGMENT_RECORDS + 10)]
    assert [event.value for event in events if event.kind == LOST] == [SEGMENT_RECORDS]


def test_events_are_lost_if_nobody_reads_them_and_recorded_again_when_somebody_does(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "MAX_SEGMENTS", 2)
    log, reader = EventLog(str(tmp_path), "7-0"), ThreadLog(tmp_path / "7-0")
    written(log, 3 * SEGMENT_RECORDS)
    read = numbers(reader.read(is_at_rest=True))
    for path in reader.forget():
        path.unlink()
    written(log, SEGMENT_RECORDS, first=3 * SEGMENT_RECORDS)
    read += numbers(reader.read(is_at_rest=True))
    assert read == [*range(2 * SEGMENT_RECORDS), *range(3 * SEGMENT_RECORDS, 4 * SEGMENT_RECORDS)]


@pytest.mark.parametrize(("files", "lost"), [(1, 0), (2, 0), (3, SEGMENT_RECORDS), (5, 3 * SEGMENT_RECORDS)])
def test_events_that_are_lost_up_to_the_end_are_counted_behind_the_last_one(tmp_path, monkeypatch, files, lost):
    monkeypatch.setattr(event_log, "MAX_SEGMENTS", 2)
    log, reader = EventLog(str(tmp_path), "7-0"), ThreadLog(tmp_path / "7-0")
    written(log, files * SEGMENT_RECORDS)
    assert numbers(reader.read(is_at_rest=True)) == [*range(min(files, 2) * SEGMENT_RECORDS)]
    assert reader.lost_at_end() == lost


def test_losses_before_the_last_file_are_not_those_at_the_end(tmp_path, monkeypatch):
    log, reader = EventLog(str(tmp_path), "7-0"), ThreadLog(tmp_path / "7-0")
    with monkeypatch.context() as full:
        full.setattr(event_log, "MAX_SEGMENTS", 1)
        written(log, 2 * SEGMENT_RECORDS)
    written(log, 10)
    assert [event.value for event in reader.read(is_at_rest=True) if event.kind == LOST] == [SEGMENT_RECORDS]
    assert reader.lost_at_end() == 0


def test_disk_space_is_reserved_before_events_are_written(tmp_path):
    EventLog(str(tmp_path), "7-0")
    assert (tmp_path / "7-0.0").stat().st_blocks * 512 >= SEGMENT_RECORDS * RECORD.size


def test_value_out_of_range_is_an_error_and_no_loop(tmp_path):
    log = EventLog(str(tmp_path), "7-0")
    with pytest.raises(Exception, match="argument out of range"):
        log.write(STEP, 0, 0, 0.0, -1)
    log.write(STEP, 1)
    assert isinstance(log._segment, mmap.mmap)
