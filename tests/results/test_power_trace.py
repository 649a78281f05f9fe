"""A run's sampled power over time: as many points as a picture shows, and no sample in none or two of them."""

import math

import pytest

from epochmeter.results import power_trace
from epochmeter.results.power_trace import downsample, downsample_columns
from epochmeter.shared.record import Record


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def test_few_samples_are_returned_individually(record):
    assert list(downsample(record, 500)) == []
    record.append_power([5, 6, 7], {"VDD_IN": [5.0, 5.0, 5.0], "total": [10.0, math.nan, 12.0]})
    assert list(downsample(record, 500)) == [(5, 10.0, 0), (7, 12.0, 0)], "a sample without a total is in no mean"
    assert list(downsample(record, 1)) == [(7, 11.0, 4)]


@pytest.mark.parametrize("count", [1, 3, 499, 500, 501, 1234])
def test_every_sample_is_in_exactly_one_mean(record, count):
    record.append_power(list(range(count)), {"total": [float(index) for index in range(count)]})
    first = 0
    for _, mean, _ in downsample(record, 500):
        first += 2 * (mean - first) + 1  # of numbers that follow one another the mean is in the middle
    assert first == count


def test_days_of_samples_use_the_beginning_of_each_section(record, monkeypatch):
    """What follows is not read: here it is no number."""
    rows = [f"{1000 + place:05d},{place % 7:.4f}\n" for place in range(500)]
    unread = "no,number\n" * 100
    (record.folder / "power.csv").write_text("monotonic_ns,total_w\n" + "".join(row + unread for row in rows))
    monkeypatch.setattr(power_trace, "BYTES_PER_POINT", len(rows[0]))
    assert list(downsample(record, 500)) == [(1000 + place, place % 7, 0) for place in range(500)]


@pytest.mark.parametrize("text", ["", "monotonic_ns,tot", "monotonic_ns,total_w\n", "monotonic_ns,total_w\n12,7.1",
                                  "monotonic_ns,total_w\n12,7.113,7.2\n"])  # fmt: skip
def test_complete_lines_of_a_truncated_file_are_read(record, text):
    (record.folder / "power.csv").write_text(text)
    assert list(downsample(record, 500)) == []


def test_means_by_column_leave_out_cells_without_a_reading(tmp_path):
    path = tmp_path / "gauges.csv"
    assert list(downsample_columns(path, 2)) == []
    cells = [("10", "none"), ("", "gpu0 power-capped"), ("", "none"), ("", "none")]
    path.write_text("monotonic_ns,a,throttling\n" + "".join(f"{at},{a},{b}\n" for at, (a, b) in enumerate(cells)))
    assert list(downsample_columns(path, 1)) == [(2, {"a": 10.0, "throttling": 0.25})]
    assert list(downsample_columns(path, 500)) == [
        (0, {"a": 10.0, "throttling": 0.0}), (1, {"throttling": 1.0}), (2, {"throttling": 0.0}),
        (3, {"throttling": 0.0}),
    ]  # fmt: skip
