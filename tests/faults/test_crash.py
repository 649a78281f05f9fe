"""A record whose writer crashes at any line: its folder has a readable state, and no completed window is lost."""

import shutil
import sys
from array import array
from itertools import pairwise

import pytest
from metadata import RUN

from epochmeter.results.power_trace import downsample
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared import atomic_files
from epochmeter.shared import record as records
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import CHECKPOINT, GAUGES, POWER, Record

GONE = this_process()._replace(start_ticks="0")
WINDOWS = [{"window": "epoch", "epoch": number, "metrics": {"epoch/steps": 1}} for number in (0, 1)]
STEP, LOSS = array("f", [0.0, 0.25, 0.5, 0.75]), array("f", [2.0])
WRITERS = {records.__file__, atomic_files.__file__}
EARLIER = ("failed", "completed")
"""States of the attempts before the one that crashes."""


def live(record, identity, end):
    """Write the complete record of a run, after archiving an earlier attempt."""
    with record.locked():
        record.archive_attempt()
        write_json(record.folder / "host.json", {"hostname": "here"})
        record.describe({"batch": 16}, {**RUN, "identity": identity, "record_id": identity, **GONE._asdict()})
    for window in WINDOWS:
        record.append_steps(STEP)
        record.append_losses(LOSS)
        record.append_power([1], {"total": [10.0]})
        record.append_gauges(("monotonic_ns", "load_1"), [{"monotonic_ns": 1, "load_1": 10.0}])
        record.append(window)
        (record.folder / CHECKPOINT).write_bytes(b"weights")
    record.write_summary({"state": end, "metrics": {}, "notes": [], "failure": None}, identity)


def disk_states(folder, act, copies):
    """Run `act`, and yield copies of a folder: its different states before each executed line of the writers.

    A crash at a line leaves what is on the disk then: buffers of open files are lost.
    """
    states = []

    def keep(frame, event, argument):
        if frame.f_code.co_filename not in WRITERS:
            return None
        if event == "line" and (state := contents(folder)) not in states[-1:]:
            states.append(state)
            shutil.copytree(folder, copies / str(len(states)))
        return keep

    tracing = sys.gettrace()
    sys.settrace(keep)
    try:
        act(Record(folder))
    finally:
        sys.settrace(tracing)
    return [Record(copies / str(number + 1)) for number in range(len(states))]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def readable_windows(record):
    """Return the readable windows of the run and of its earlier attempts, by record ID."""
    windows = {}
    for attempt in (record, *record.attempts()):
        if RunFolder(attempt.folder).state != "planned":
            windows[attempt.run()["record_id"]] = attempt.windows()
    return windows


def read(record):
    """Check that the record is readable and consistent, and return its state."""
    state = RunFolder(record.folder).state
    if state == "planned":
        assert not record.is_completed()
    else:
        assert record.job() == {"batch": 16}
        assert record.windows() == WINDOWS[: len(record.windows())]
        assert len(record.steps()) % len(STEP) == 0
        assert len(record.steps()) >= len(record.windows()) * len(STEP)
        assert (state == "completed") == record.is_completed(record.run()["identity"])
    return state


def test_record_after_a_crash_at_any_line_is_readable_and_completed_later(tmp_path):
    (tmp_path / "run").mkdir()
    for number, end in enumerate(EARLIER):
        live(Record(tmp_path / "run"), f"run{number}", end)
    states = []
    for record in disk_states(tmp_path / "run", lambda record: live(record, "run2", "completed"), tmp_path):
        states.append((read(record), "run2" in readable_windows(record)))
        crashed = readable_windows(record).get("run2")
        live(record, "run3", "completed")
        assert read(record) == "completed"
        assert list(record.folder.rglob(CHECKPOINT)) == []
        runs = readable_windows(record)
        assert runs.pop("run2", None) == crashed
        assert runs == {"run0": WINDOWS, "run1": WINDOWS, "run3": WINDOWS}
    distinct = [states[0], *(later for earlier, later in pairwise(states) if later != earlier)]
    # An earlier completed attempt counts until it is archived.
    assert distinct[:2] == [("completed", False), ("planned", False)]
    # A run with a summary but without completed.json does not count as completed.
    assert distinct[2:] == [("killed", True), ("failed", True), ("completed", True)]
    assert len(states) > 30


def test_run_can_resume_after_a_crash_at_any_line_of_truncation(tmp_path):
    (tmp_path / "run").mkdir()
    live(Record(tmp_path / "run"), "run0", "killed")
    records = disk_states(tmp_path / "run", lambda record: record.truncate_to_epoch(1), tmp_path)
    assert len(records) > 5
    for record in records:
        assert read(record) == "killed"
        assert record.windows()[:1] == WINDOWS[:1]
        record.truncate_to_epoch(1)
        assert record.windows() == WINDOWS[:1]
        assert (len(record.steps()), len(record.losses())) == (len(STEP), len(LOSS))


@pytest.mark.parametrize("name", ["epochs.jsonl", "steps.bin", "losses.bin", "power.csv", "gauges.csv"])
def test_file_truncated_at_any_byte_is_read_up_to_its_last_complete_entry(tmp_path, name):
    record = Record(tmp_path)
    live(record, "run0", "killed")
    content = (tmp_path / name).read_bytes()
    for size in range(len(content)):
        (tmp_path / name).write_bytes(content[:size])
        assert record.windows() == WINDOWS[: len(record.windows())]
        assert len(record.steps()) % len(STEP) == 0
        assert record.losses() == LOSS * len(record.losses())
        assert all(point.means == {"total_w": 10.0} for point in downsample(record.folder / POWER, 500))
        assert all(point.means == {"load_1": 10.0} for point in downsample(record.folder / GAUGES, 500))
