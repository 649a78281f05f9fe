import json
import math
import struct
from array import array

import pytest
from project import write_checkpoint

from epochmeter.shared.record import CHECKPOINT, INTERVALS, MAX_PROGRESS_BYTES, Record

COMPLETED = {"state": "completed", "metrics": {"total/epochs": 2}, "notes": [], "failure": None}


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def step(number):
    """A step's row of four different values: gap, wait, copy and compute."""
    return [number, number + 0.25, number + 0.5, number + 0.75]


def steps(*numbers):
    return array("f", [value for number in numbers for value in step(number)])


def test_truncated_last_line_is_ignored(record, tmp_path):
    for text in ('{"epoch": 0}\n{"epoch": 1}', '{"epoch": 0}\n{"epo'):
        (tmp_path / "epochs.jsonl").write_text(text)
        assert record.windows() == [{"epoch": 0}]


def test_run_is_completed_by_its_summary_but_not_without_a_job(record, tmp_path):
    assert (record.summary(), record.is_completed()) == (None, False)
    record.write_summary(COMPLETED, "1d")  # left by a killed process that archived an earlier run
    assert (record.summary(), record.is_completed()) == (COMPLETED, False)
    record.describe({}, {})
    assert [record.is_completed(identity) for identity in (None, "1d", "another")] == [True, True, False]
    (tmp_path / "completed.json").write_text('{"identity": "1d')
    assert not record.is_completed()


def test_steps_are_little_endian_floats_and_can_be_read_in_parts(record, tmp_path):
    record.flush_steps()
    assert list(tmp_path.iterdir()) == []
    record.append_steps(steps(1))
    assert INTERVALS == ("gap_s", "host_wait_s", "copy_s", "compute_s")
    assert (tmp_path / "steps.bin").read_bytes() == struct.pack("<4f", *step(1))
    record.append_steps(steps(2, 3), durably=False)
    record.flush_steps()
    for since, count, expected in ((1, 0, []), (1, 1, [2]), (1, 9, [2, 3]), (9, 1, []), (1, None, [2, 3])):
        assert record.steps(since, count) == steps(*expected)


def test_each_attempt_is_archived_completely_in_its_own_folder(record, tmp_path):
    for number in range(3):
        record.describe({}, {})
        record.append({"epoch": number})
        record.append_steps(steps(number))
        for name in (CHECKPOINT, f".{CHECKPOINT}"):  # the second is half of the next
            (tmp_path / name).write_bytes(b"weights")
        record.archive_attempt()
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    names = ("job.json", "epochs.jsonl", "steps.bin")
    assert files == {f"attempt{number}/{name}" for number in (1, 2, 3) for name in names}
    assert [attempt.windows() for attempt in record.attempts()] == [[{"epoch": number}] for number in range(3)]
    assert [attempt.steps() for attempt in record.attempts()] == [steps(number) for number in range(3)]


@pytest.mark.parametrize(("offset", "value"), [(6, 255), (8, 1), (10, 8), (10, 255)])
def test_checkpoint_with_a_damaged_directory_is_unreadable(record, tmp_path, offset, value):
    """Version, encryption and compression of its last entry, in the order of the zip file's directory."""
    write_checkpoint(record, "r0", 3)
    assert record.checkpoint(verify=True) == {"record_id": "r0", "epochs": 3}
    content = bytearray((tmp_path / CHECKPOINT).read_bytes())
    content[content.rindex(b"PK\x01\x02") + offset] = value
    (tmp_path / CHECKPOINT).write_bytes(content)
    assert record.checkpoint() is record.checkpoint(verify=True) is None


def test_truncation_keeps_the_windows_and_steps_before_an_epoch_and_archives_the_end(record, tmp_path):
    for number in range(3):
        record.append_steps(steps(number))
        record.append_losses(array("f", [number]))
        record.append({"window": "epoch", "epoch": number, "metrics": {"epoch/steps": 1}})
        record.append({"window": "val", "epoch": number, "metrics": {}})
    record.append_progress({"epoch": 2})
    for name in ("summary.json", "worker.log", "power.csv", "gauges.csv"):
        (tmp_path / name).write_text("{}\n{trunc" if name.endswith(".csv") else "{}\n")
    for also in ([], ["power.csv"]):  # a killed start may repeat it
        record.truncate_to_epoch(2, also)
        windows = [(window["window"], window["epoch"]) for window in record.windows()]
        assert windows == [("epoch", 0), ("val", 0), ("epoch", 1)], "the evaluation after the checkpoint is repeated"
        assert (record.steps(), record.losses()) == (steps(0, 1), array("f", [0, 1]))
        assert (tmp_path / "power.csv").exists() is not bool(also)
        assert (tmp_path / "gauges.csv").read_text() == "{}\n"
    assert {path.name for path in (tmp_path / "attempt1").iterdir()} == {"summary.json", "worker.log", "progress.jsonl"}


def test_progress_is_appended_to_a_file_of_limited_size_until_the_epoch_ends(record, tmp_path):
    path, sizes = tmp_path / "progress.jsonl", []
    for step in range(2 * MAX_PROGRESS_BYTES // 20):
        record.append_progress({"epoch": 7, "steps": step})
        sizes.append(path.stat().st_size)
    assert max(sizes) < MAX_PROGRESS_BYTES + 40
    assert json.loads(path.read_text().splitlines()[-1]) == {"epoch": 7, "steps": step}
    for _ in range(2):
        record.end_progress()
        assert not path.exists()
    Record(tmp_path / "missing").append_progress({"epoch": 0})


@pytest.mark.parametrize("durably", [True, False])
def test_gauges_have_empty_cells_for_readings_that_failed_and_keep_their_columns(record, tmp_path, durably):
    columns = ("monotonic_ns", "cpu_utilization", "throttling")
    rows = [{"monotonic_ns": 78375588330762, "cpu_utilization": 0.12345678, "throttling": "none"}]
    record.append_gauges(columns, rows, durably)
    other = {"monotonic_ns": 78375588330763, "ram_used_bytes": 5, "cpu_utilization": None}
    record.append_gauges(("monotonic_ns", "ram_used_bytes"), [other, {"cpu_utilization": 123456789.9}], durably)
    assert (tmp_path / "gauges.csv").read_text().splitlines() == [
        "monotonic_ns,cpu_utilization,throttling",
        "78375588330762,0.123457,none",
        "78375588330763,,",
        ",123456790,",
    ]


def test_power_of_a_resumed_run_keeps_its_columns_if_the_meter_has_other_domains(record, tmp_path):
    record.append_power([1], {"gpu0": [40.0], "total": [41.0]})
    record.append_power([2], {"cpu0": [9.0], "gpu0": [math.nan], "total": [42.0]})
    lines = ["monotonic_ns,gpu0_w,total_w", "1,40.0000,41.0000", "2,,42.0000"]
    assert (tmp_path / "power.csv").read_text().splitlines() == lines
