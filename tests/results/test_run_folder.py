"""Run folders as readers get them: lazily, in an order that no ending run can disturb, and with what cannot be read."""

import json

import pytest
from metadata import RUN

from epochmeter.results import run_folder
from epochmeter.results.run_folder import OtherSchemaError, RunFolder
from epochmeter.results.run_status import NO_COMPLETION, UNKNOWN_STATE
from epochmeter.shared.atomic_files import read_json, write_json
from epochmeter.shared.problem import Problem
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import Record

WINDOWS = [{"window": kind, "epoch": epoch, "metrics": {}} for epoch in range(2) for kind in ("epoch", "val")]
SUMMARY = {"state": "completed", "metrics": {"total/e2e_s": 1.0}, "notes": [], "failure": None}


@pytest.fixture
def record(tmp_path):
    """A running run of two epochs."""
    record = Record(tmp_path)
    record.describe({"batch": 8}, {**RUN, **this_process()._asdict()})
    for window in WINDOWS:
        record.append(window)
    return record


def damage_line(record, number):
    path = record.folder / "epochs.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{'{' if place == number else line}\n" for place, line in enumerate(lines)))


def test_only_the_files_that_are_needed_are_read_each_once(record, monkeypatch):
    read, read_bytes = [], run_folder.read_bytes
    for module in (run_folder, run_folder.documents):
        monkeypatch.setattr(module, "read_bytes", lambda path, *more: read.append(str(path)) or read_bytes(path, *more))
    folder = RunFolder(record.folder)
    assert (folder.run.number, folder.job, read) == (0, {"batch": 8}, [f"{record.folder}/job.json"])
    assert folder.windows == folder.all_windows == WINDOWS
    assert (folder.host, folder.host, folder.errors) == ({}, {}, [])
    assert [path.rpartition("/")[2] for path in read] == ["job.json", "epochs.jsonl", "host.json"]


@pytest.mark.parametrize(
    ("damaged", "epochs", "last"), [(None, [0, 1], 1), (0, [1], 1), (1, [0, 1], 1), (2, [0], 1), (3, [0, 1], None)]
)
def test_damaged_line_costs_its_window_and_what_is_not_known_without_it(record, damaged, epochs, last):
    damage_line(record, damaged)
    with (record.folder / "epochs.jsonl").open("a") as file:
        file.write('{"window": "ep')  # is being written
    folder = RunFolder(record.folder)
    assert [window["epoch"] for window in folder.windows if window["window"] == "epoch"] == epochs
    assert (folder.last("val") or {}).get("epoch") == last
    assert folder.errors == ([] if damaged is None else ["epochs.jsonl: 1 unreadable line"])
    if damaged is not None:
        with pytest.raises(ValueError, match="1 unreadable line"):
            _ = folder.all_windows


def test_file_that_is_no_file_is_an_error_and_not_a_record_without_it(record):
    (record.folder / "epochs.jsonl").unlink()
    for name in ("epochs.jsonl", "host.json"):
        (record.folder / name).symlink_to(record.folder / "job.json")
    folder = RunFolder(record.folder)
    assert (folder.windows, folder.host, folder.last("val")) == ([], {}, None)
    why = "it is a link, and links are not followed"
    assert folder.errors == [f"epochs.jsonl: {why}", f"host.json: {why}"]
    with pytest.raises(OSError, match=why):
        _ = folder.all_windows


def test_run_that_ends_while_it_is_read_has_recorded_its_end(record, monkeypatch):
    def end(process):
        record.write_summary(SUMMARY, "id")
        return False

    monkeypatch.setattr(run_folder, "is_alive", end)
    for first in ("summary", "completion", "state"):
        (record.folder / "completed.json").unlink(missing_ok=True)
        (record.folder / "summary.json").unlink(missing_ok=True)
        folder = RunFolder(record.folder)
        _ = getattr(folder, first)
        assert (folder.state, folder.summary, folder.failure) == ("completed", SUMMARY, None)


@pytest.mark.parametrize(
    ("summary", "state", "failure"),
    [
        ({**SUMMARY, "state": "failed", "failure": {"message": "no memory"}}, "failed", Problem("no memory")),
        ({**SUMMARY, "state": "killed"}, "killed", None),
        (SUMMARY, "failed", Problem(NO_COMPLETION)),
        ({**SUMMARY, "state": "melted"}, "failed", Problem(UNKNOWN_STATE.format("melted"))),
        ({**SUMMARY, "state": "melted", "failure": {"message": "hot"}}, "failed", Problem("hot")),
        (None, "killed", None),
    ],
)
def test_reason_of_a_failure_is_the_recorded_one_or_what_is_known(record, summary, state, failure):
    record.describe(record.job(), {**record.run(), "start_ticks": "0"})
    if summary:
        write_json(record.folder / "summary.json", summary)
    folder = RunFolder(record.folder)
    assert (folder.state, folder.failure) == (state, failure)


def test_record_of_another_schema_is_not_read_as_one_of_this(record):
    path = record.folder / "job.json"
    write_json(path, {**read_json(path), "schema": 2})
    with pytest.raises(OtherSchemaError, match="schema 2, and schema 1 is read here"):
        _ = RunFolder(record.folder).run


@pytest.mark.parametrize("text", ["{half", "[]", "{}", json.dumps({"job": {}}), json.dumps({"run": RUN})])
def test_without_readable_metadata_a_recorded_end_is_known_and_nothing_else(record, text):
    (record.folder / "job.json").write_text(text)
    assert RunFolder(record.folder).recorded_end is None
    with pytest.raises(ValueError, match=r"."):
        _ = RunFolder(record.folder).state
    record.write_summary(SUMMARY, "id")
    assert RunFolder(record.folder).recorded_end == RunFolder(record.folder).state == "completed"
    with pytest.raises(ValueError, match=r"."):
        _ = RunFolder(record.folder).run


def test_summary_of_a_completed_run_that_was_lost_is_an_error(record):
    record.write_summary(SUMMARY, "id")
    (record.folder / "summary.json").unlink()
    with pytest.raises(FileNotFoundError):
        _ = RunFolder(record.folder).summary
