"""A record's status in MLflow's terms, and when its run ended."""

import os
from datetime import datetime

import pytest

from epochmeter.shared.atomic_files import write_json
from epochmeter.tracking.state import ended_s, started_s, status_of

FRIDAY_S, MONDAY_S = 2e9, 2e9 + 3 * 86400


@pytest.mark.parametrize(("state", "status"), [("completed", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")])
def test_end_maps_to_mlflow_status(make_record, state, status):
    assert status_of(make_record(state=state)) == status


def test_recorded_end_is_independent_of_file_times(make_record):
    record = make_record()
    finished = ended_s(record)
    os.utime(record.folder / "job.json", (0, 2**31))
    assert ended_s(record) == finished
    failed = make_record(1, state="failed")
    ended = datetime.fromtimestamp(FRIDAY_S).astimezone()
    write_json(failed.folder / "summary.json", {**failed.summary(), "ended": ended.isoformat()})
    assert ended_s(failed) == FRIDAY_S


def test_run_closed_late_ended_at_its_last_write(make_record):
    """Its summary, and the tracking keys in its job, may be written later."""
    record = make_record(state="killed")
    record.append_power([1], {"total": [5.0]})
    times = {"power.csv": FRIDAY_S - 1, "epochs.jsonl": FRIDAY_S, "summary.json": MONDAY_S, "job.json": MONDAY_S}
    for name, written_s in times.items():
        os.utime(record.folder / name, (0, written_s))
    assert ended_s(record) == FRIDAY_S


def test_run_that_wrote_nothing_ended_at_its_start(make_record):
    record = make_record(state=None, epochs=0)
    assert ended_s(record) == started_s(record)
