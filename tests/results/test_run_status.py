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


def write_end(record, state, completed=True):
    record.write_summary({"state": state, "metrics": {}, "notes": [], "failure": None}, "1d")
    if not completed:
        (record.folder / "completed.json").unlink()


def test_run_without_job_is_planned(record):
    assert status_of(record) == "planned"
    write_end(record, "completed")  # a remainder of an attempt that was being archived
    assert status_of(record) == "planned"


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
    record.describe({}, {"identity": "1d", **this_process()._asdict(), **process})
    if recorded:
        write_end(record, recorded, is_completed or recorded != "completed")
    assert status_of(record, ended=ended) == state
