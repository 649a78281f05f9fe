"""A run's state is the recorded one; without a recorded end, it depends on the process."""

import pytest

from epochmeter.results.run_status import status_of
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record

DEAD = {"start_ticks": "0"}
"""An earlier process with this process's ID."""


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


@pytest.mark.parametrize(
    ("process", "recorded", "is_completed", "ended", "state"),
    [
        # without an end, it runs while its process may live
        ({}, None, False, None, "running"),
        (DEAD, None, False, None, "killed"),
        ({"host": "board-7", "pid": 1, **DEAD}, None, False, None, "running"),
        # a recorded end has precedence
        *((DEAD, state, True, "failed", state) for state in ("completed", "failed", "killed")),
        # a summary without completed.json is no completion
        (DEAD, "completed", False, None, "failed"),
        (DEAD, "completed", False, "completed", "failed"),
        ({}, "completed", False, None, "running"),
        # the controller's end counts if the record has none
        ({}, None, False, "completed", "failed"),
        ({}, None, False, "failed", "failed"),
        ({}, None, False, "killed", "killed"),
    ],
)
def test_state_by_process_record_and_the_controllers_end(record, process, recorded, is_completed, ended, state):
    if recorded:
        record.write_summary({"state": recorded, "metrics": {}, "notes": [], "failure": None}, "1d")
    assert status_of(record) == "planned", "without a job, this is a remainder of an attempt that was being archived"
    record.describe({}, {"identity": "1d", **this_process()._asdict(), **process})
    if recorded == "completed" and not is_completed:
        (record.folder / "completed.json").unlink()
    assert status_of(record, ended=ended) == state
