"""A run's sampled power over time: as many points as a picture shows, and no sample in none or two of them."""

import math

import pytest

from epochmeter.results import power_trace
from epochmeter.results.power_trace import downsample
from epochmeter.shared.record import POWER, Record


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def test_few_samples_are_returned_individually_without_absent_readings(record):
    path = record.folder / POWER
    assert list(downsample(path, 500)) == []
    record.append_power([5, 6, 7, 8], {"VDD_IN": [5.0] * 4, "total": [10.0, math.nan, 12.0, 14.0]})
    assert [(at_ns, mean_of_ns, means.get("total_w")) for at_ns, mean_of_ns, means in downsample(path, 500)] == [
        (5, 0, 10.0), (6, 0, None), (7, 0, 12.0), (8, 0, 14.0),
    ]  # fmt: skip
    assert list(downsample(path, 1)) == [(7, 4, {"VDD_IN_w": 5.0, "total_w": 12.0})]


@pytest.mark.parametrize("count", [1, 500, 501, 1234])
def test_every_sample_is_in_exactly_one_mean(record, count):
    record.append_power(list(range(count)), {"total": [float(index) for index in range(count)]})
    first = 0
    for point in downsample(record.folder / POWER, 500):
        first += 2 * (point.means["total_w"] - first) + 1  # of consecutive numbers, the mean is in the middle
    assert first == count


def test_days_of_samples_use_the_beginning_of_each_section(record, monkeypatch):
    """What follows is not read: here it is no number."""
    rows = [f"{1000 + place:05d},{place % 7:.4f}\n" for place in range(500)]
    unread = "no,number\n" * 100
    (record.folder / POWER).write_text("monotonic_ns,total_w\n" + "".join(row + unread for row in rows))
    monkeypatch.setattr(power_trace, "BYTES_PER_POINT", len(rows[0]))
    points = list(downsample(record.folder / POWER, 500))
    assert points == [(1000 + place, 0, {"total_w": place % 7}) for place in range(500)]


@pytest.mark.parametrize("text", ["", "monotonic_ns,tot", "monotonic_ns,total_w\n", "monotonic_ns,total_w\n12,7.1",
                                  "monotonic_ns,total_w\n12,7.113,7.2\n"])  # fmt: skip
def test_complete_lines_of_a_truncated_file_are_read(record, text):
    (record.folder / POWER).write_text(text)
    assert list(downsample(record.folder / POWER, 500)) == []
