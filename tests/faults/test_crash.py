"""A record whose writer crashes at any line: its folder has a readable state, and no completed window is lost."""

import os
import shutil
import sys
from array import array
from itertools import count, pairwise

import pytest

from epochmeter.machine.process_identity import this_process
from epochmeter.results.power_trace import downsample
from epochmeter.results.run_status import status_of
from epochmeter.shared import atomic_files
from epochmeter.shared import record as records
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.record import CHECKPOINT, Record

CRASHED = 86
GONE = this_process()._replace(began="0")
WINDOWS = [{"window": "epoch", "epoch": number, "metrics": {"epoch/steps": 1}} for number in (0, 1)]
STEP, LOSS = array("f", [0.0, 0.25, 0.5, 0.75]), array("f", [2.0])
WRITERS = {records.__file__, atomic_files.__file__}
EARLIER = ("failed", "completed")
"""States of the attempts before the one that crashes."""


@pytest.fixture(autouse=True)
def _memory_is_the_disk(monkeypatch):
    """Skip fsync: written data survives the crash of a process."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def live(record, identity, end):
    """Write the complete record of a run, after archiving an earlier attempt."""
    with record.locked():
        record.archive_attempt()
        write_json(record.folder / "host.json", {"hostname": "here"})
        record.describe({"batch": 16}, {"identity": identity, "record_id": identity, **GONE._asdict()})
    for window in WINDOWS:
        record.append_steps(STEP)
        record.append_losses(LOSS)
        record.append_power([1], {"total": [10.0]})
        record.append(window)
        (record.folder / CHECKPOINT).write_bytes(b"weights")
    record.write_summary({"state": end, "metrics": {}, "notes": [], "failure": None}, identity)


def crashes_at(line, record, act):
    """Run `act` in a child process that exits before the given executed line of the writers; return whether it did."""
    child = os.fork()
    if not child:
        lines_left = count(-line)

        def trace(frame, event, argument):
            ours = frame.f_code.co_filename in WRITERS
            if ours and event == "line" and next(lines_left) == 0:
                os._exit(CRASHED)
            return trace if ours else None

        sys.settrace(trace)
        try:
            act(record)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == CRASHED


def readable_windows(record):
    """Return the readable windows of the run and of its earlier attempts, by record ID."""
    windows = {}
    for attempt in (record, *record.attempts()):
        if status_of(attempt) != "planned":
            windows[attempt.run()["record_id"]] = attempt.windows()
    return windows


def read(record):
    """Check that the record is readable and consistent, and return its state."""
    state = status_of(record)
    if state == "planned":
        assert not record.is_completed()
    else:
        assert record.job() == {"batch": 16}
        assert record.windows() == WINDOWS[: len(record.windows())]
        assert len(record.steps()) % len(STEP) == 0
        assert len(record.steps()) >= len(record.windows()) * len(STEP)
        assert (state == "completed") == record.is_completed(record.run()["identity"])
    return state


def test_record_is_readable_after_a_crash_at_any_line_and_the_next_start_completes_it(tmp_path):
    (tmp_path / "earlier").mkdir()
    for number, end in enumerate(EARLIER):
        live(Record(tmp_path / "earlier"), f"run{number}", end)
    states = []
    for line in count():
        record = Record(shutil.copytree(tmp_path / "earlier", tmp_path / str(line)))
        if not crashes_at(line, record, lambda record: live(record, "run2", "completed")):
            break
        states.append((read(record), "run2" in readable_windows(record)))
        crashed = readable_windows(record).get("run2")
        live(record, "run3", "completed")
        assert read(record) == "completed"
        assert list(record.folder.rglob(CHECKPOINT)) == []
        runs = readable_windows(record)
        assert runs.pop("run2", None) == crashed
        assert runs == {"run0": WINDOWS, "run1": WINDOWS, "run3": WINDOWS}
    distinct = [states[0], *(later for earlier, later in pairwise(states) if later != earlier)]
    assert distinct[:2] == [("completed", False), ("planned", False)], (
        "an earlier completed attempt counts until it is archived"
    )
    # A run with a summary but without completed.json does not count as completed.
    assert distinct[2:] == [("killed", True), ("failed", True), ("completed", True)]
    assert len(states) > 100


def test_run_can_resume_after_a_crash_at_any_line_of_truncation(tmp_path):
    for line in count():
        record = Record(tmp_path / str(line))
        record.folder.mkdir()
        live(record, "run0", "killed")
        if not crashes_at(line, record, lambda record: record.truncate_to_epoch(1)):
            break
        assert read(record) == "killed"
        assert record.windows()[:1] == WINDOWS[:1]
        record.truncate_to_epoch(1)
        assert record.windows() == WINDOWS[:1]
        assert (len(record.steps()), len(record.losses())) == (len(STEP), len(LOSS))
    assert line > 20


@pytest.mark.parametrize("name", ["epochs.jsonl", "steps.bin", "losses.bin", "power.csv"])
def test_file_truncated_at_any_byte_is_read_up_to_its_last_complete_entry(tmp_path, name):
    record = Record(tmp_path)
    live(record, "run0", "killed")
    content = (tmp_path / name).read_bytes()
    for size in range(len(content)):
        (tmp_path / name).write_bytes(content[:size])
        assert record.windows() == WINDOWS[: len(record.windows())]
        assert len(record.steps()) % len(STEP) == 0
        assert record.losses() == LOSS * len(record.losses())
        assert all(point.watts == 10.0 for point in downsample(record, 500))
