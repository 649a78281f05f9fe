"""A run ended as its record says; one that says nothing is under way while its process is."""

import pytest

from epochmeter.machine.process_identity import this_process
from epochmeter.results.run_status import status_of
from epochmeter.shared.record import Record

GONE = {"began": "0"}
"""Another process than the one that has the number now."""


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def begun(record, **process):
    record.describe({}, {"identity": "1d", **this_process()._asdict(), **process})


def ended(record, end):
    record.write_summary({"state": end, "metrics": {}, "notes": [], "failure": None}, "1d")


def test_run_without_job_is_planned(record):
    assert status_of(record) == "planned"
    ended(record, "completed")  # what another attempt left, when it was to be set aside
    assert status_of(record) == "planned"


def test_run_without_an_end_is_running_while_its_process_lives(record):
    begun(record)
    assert status_of(record) == "running"


def test_run_without_an_end_whose_process_is_gone_was_killed(record):
    begun(record, **GONE)
    assert status_of(record) == "killed"


@pytest.mark.parametrize("end", ["completed", "failed", "killed"])
@pytest.mark.parametrize("process", [{}, GONE], ids=["alive", "gone"])
def test_recorded_end_has_precedence(record, end, process):
    begun(record, **process)
    ended(record, end)
    assert status_of(record) == end
    assert status_of(record, ended="failed") == end


def test_summary_without_completion_is_not_completed(record, tmp_path):
    begun(record, **GONE)
    ended(record, "completed")
    (tmp_path / "completed.json").unlink()
    assert status_of(record) == "failed"
    assert status_of(record, ended="completed") == "failed"


def test_summary_of_a_living_process_is_running(record, tmp_path):
    begun(record)
    ended(record, "completed")
    (tmp_path / "completed.json").unlink()
    assert status_of(record) == "running"


@pytest.mark.parametrize(("end", "told"), [("completed", "failed"), ("failed", "failed"), ("killed", "killed")])
def test_controllers_end_counts_if_the_record_has_none(record, end, told):
    begun(record)
    assert status_of(record, ended=end) == told


def test_run_of_another_host_is_assumed_to_be_running(record):
    begun(record, host="board-7", pid=1, **GONE)
    assert status_of(record) == "running"


def test_record_without_process_start_is_checked_by_pid(record):
    """As those of before were written."""
    begun(record, began=None)
    assert status_of(record) == "running"
    begun(record, began=None, pid=2**22 + 1)
    assert status_of(record) == "killed"
