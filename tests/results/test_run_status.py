"""A run's state is the recorded one; without a recorded end, it depends on the process."""

import re
from typing import get_args

import pytest
from metadata import RUN
from project import ROOT

from epochmeter.results.run_folder import RunFolder
from epochmeter.results.run_status import STATES
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record
from epochmeter.watch.snapshot import State

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
    without_job = RunFolder(record.folder)
    assert without_job.state == "planned", "this is a remainder of an attempt that was being archived"
    record.describe({}, {**RUN, "identity": "1d", **this_process()._asdict(), **process})
    if recorded == "completed" and not is_completed:
        (record.folder / "completed.json").unlink()
    assert RunFolder(record.folder).state_if(ended) == state


def test_states_of_the_live_view_and_of_the_documentation_are_these():
    parts_of_running = {"preparing", "training", "stalled"}
    assert {*get_args(State)} == {*STATES, *parts_of_running, "unreadable"} - {"running"}
    table = (ROOT / "docs/reliability.md").read_text().partition("## Run states")[2].partition("**Crash")[0]
    listed = re.findall(r"^\| (?!state|-)([a-z, ]+) \|", table, re.MULTILINE)
    assert [state for cell in listed for state in cell.split(", ")] == [*STATES]
