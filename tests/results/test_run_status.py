"""A run's state is the recorded one; without a recorded end, it depends on the process."""

import pytest

from epochmeter.machine.process_identity import this_process
from epochmeter.results.run_status import status_of
from epochmeter.shared.record import Record

DEAD = {"began": "0"}
"""An earlier process with this process's ID."""


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def write_start(record, **process):
    record.describe({}, {"identity": "1d", **this_process()._asdict(), **process})


def write_end(record, state, completed=True):
    record.write_summary({"state": state, "metrics": {}, "notes": [], "failure": None}, "1d")
    if not completed:
        (record.folder / "completed.json").unlink()


def test_run_without_job_is_planned(record):
    assert status_of(record) == "planned"
    write_end(record, "completed")  # a remainder of an attempt that was being archived
    assert status_of(record) == "planned"


@pytest.mark.parametrize(
    ("process", "state"),
    [
        ({}, "running"),
        (DEAD, "killed"),
        ({"host": "board-7", "pid": 1, **DEAD}, "running"),
    ],
    ids=["alive", "dead", "another host"],
)
def test_run_without_an_end_is_running_while_its_process_may_live(record, process, state):
    write_start(record, **process)
    assert status_of(record) == state


@pytest.mark.parametrize("state", ["completed", "failed", "killed"])
@pytest.mark.parametrize("process", [{}, DEAD], ids=["alive", "dead"])
def test_recorded_end_has_precedence(record, state, process):
    write_start(record, **process)
    write_end(record, state)
    assert status_of(record) == status_of(record, ended="failed") == state


@pytest.mark.parametrize(
    ("process", "ended", "state"), [(DEAD, None, "failed"), (DEAD, "completed", "failed"), ({}, None, "running")]
)
def test_summary_without_completion_is_not_completed(record, process, ended, state):
    write_start(record, **process)
    write_end(record, "completed", completed=False)
    assert status_of(record, ended=ended) == state


@pytest.mark.parametrize(("ended", "state"), [("completed", "failed"), ("failed", "failed"), ("killed", "killed")])
def test_controllers_end_counts_if_the_record_has_none(record, ended, state):
    write_start(record)
    assert status_of(record, ended=ended) == state
