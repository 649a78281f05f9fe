"""A run ended as its record says; one that says nothing is under way while its process is."""

import pytest

from epochmeter.machine.process_identity import this_process
from epochmeter.results.run_status import state
from epochmeter.shared.record import Record

GONE = {"began": "0"}
"""Another process than the one that has the number now."""


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def begun(record, **process):
    record.describe({}, {"identity": "1d", **this_process()._asdict(), **process})


def ended(record, end):
    record.conclude({"state": end, "metrics": {}, "notes": [], "failure": None}, "1d")


def test_a_run_whose_folder_holds_no_job_is_planned(record):
    assert state(record) == "planned"
    ended(record, "whole")  # what another attempt left, when it was to be set aside
    assert state(record) == "planned"


def test_a_run_without_an_end_is_running_while_its_process_is_there(record):
    begun(record)
    assert state(record) == "running"


def test_a_run_without_an_end_whose_process_is_gone_was_killed(record):
    begun(record, **GONE)
    assert state(record) == "killed"


@pytest.mark.parametrize("end", ["whole", "failed", "killed"])
@pytest.mark.parametrize("process", [{}, GONE], ids=["alive", "gone"])
def test_a_run_ended_as_its_record_says_whatever_else_is_told(record, end, process):
    begun(record, **process)
    ended(record, end)
    assert state(record) == end
    assert state(record, ended="failed") == end


def test_a_summary_that_no_end_followed_is_no_whole_run(record, tmp_path):
    begun(record, **GONE)
    ended(record, "whole")
    (tmp_path / "whole.json").unlink()
    assert state(record) == "failed"
    assert state(record, ended="whole") == "failed"


def test_a_summary_whose_end_may_still_follow_is_a_running_run(record, tmp_path):
    begun(record)
    ended(record, "whole")
    (tmp_path / "whole.json").unlink()
    assert state(record) == "running"


@pytest.mark.parametrize(("end", "told"), [("whole", "failed"), ("failed", "failed"), ("killed", "killed")])
def test_a_run_that_could_not_write_its_end_ended_as_its_living_steward_says(record, end, told):
    begun(record)
    assert state(record, ended=end) == told


def test_a_run_of_another_host_is_believed_to_go_on(record):
    begun(record, host="board-7", pid=1, **GONE)
    assert state(record) == "running"


def test_a_record_that_tells_no_beginning_of_its_process_is_judged_by_its_number(record):
    """As those of before were written."""
    begun(record, began=None)
    assert state(record) == "running"
    begun(record, began=None, pid=2**22 + 1)
    assert state(record) == "killed"
