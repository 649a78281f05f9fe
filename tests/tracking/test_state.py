"""A record's state in MLflow's words, and when its run ended."""

import os
from datetime import datetime

import pytest

from epochmeter.machine.process_identity import this_process
from epochmeter.shared.atomic_files import write_json
from epochmeter.tracking.state import ended_s, recorded_status, started_s, status_of

FRIDAY_S, MONDAY_S = 2e9, 2e9 + 3 * 86400


@pytest.mark.parametrize(("told", "shown"), [("completed", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_end_maps_to_mlflow_status(make_record, told, shown):
    record = make_record(state=told)
    assert (status_of(record), recorded_status(record)) == (shown, shown)


def test_running_run_has_no_recorded_end(make_record):
    record = make_record(state=None, **this_process()._asdict())
    assert (status_of(record), recorded_status(record)) == ("RUNNING", None)


def test_completed_run_ended_when_recorded_not_when_copied(make_record):
    record = make_record()
    finished = ended_s(record)
    os.utime(record.folder / "job.json", (0, 2**31))
    assert ended_s(record) == finished


def test_failed_or_stopped_run_ended_when_recorded(make_record):
    record = make_record(state="failed")
    ended = datetime.fromtimestamp(FRIDAY_S).astimezone()
    write_json(record.folder / "summary.json", {**record.summary(), "ended": ended.isoformat()})
    assert ended_s(record) == FRIDAY_S


def test_run_closed_late_ended_at_its_last_write(make_record):
    """And so did one of whose end a fleet's sender learned late, and wrote into its job where it is shown."""
    record = make_record(state="killed")
    record.append_power([1], {"total": [5.0]})
    for name, wrote_s in {"power.csv": FRIDAY_S - 1, "epochs.jsonl": FRIDAY_S, "summary.json": MONDAY_S}.items():
        os.utime(record.folder / name, (0, wrote_s))
    os.utime(record.folder / "job.json", (0, MONDAY_S))
    assert ended_s(record) == FRIDAY_S


def test_run_that_wrote_nothing_ended_at_its_start(make_record):
    record = make_record(state=None, epochs=0)
    assert ended_s(record) == started_s(record)
