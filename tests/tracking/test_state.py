"""A record's state in MLflow's words, and when its run ended."""

import os

import pytest

from trainmeter.processes import this_process
from trainmeter.tracking.state import ended_s, said, state


@pytest.mark.parametrize(("told", "shown"), [("whole", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_an_end_has_a_word_of_mlflows(make_record, told, shown):
    record = make_record(state=told)
    assert (state(record), said(record)) == (shown, shown)


def test_a_run_under_way_is_running_and_has_told_no_end(make_record):
    record = make_record(state=None, **this_process()._asdict())
    assert (state(record), said(record)) == ("RUNNING", None)


def test_a_finished_run_ended_when_it_said_and_not_when_it_was_copied(make_record):
    record = make_record()
    finished = ended_s(record)
    os.utime(record.folder / "job.json", (0, 2**31))
    assert ended_s(record) == finished
