"""Reading of growing files: only complete lines, and only those that are new."""

import os
from io import FileIO

import pytest

from epochmeter.watch import appended
from epochmeter.watch.appended import AppendedFile, RecentSamples

SECOND = 1_000_000_000


def stamp(row):
    """Return a row whose first cell, in seconds, is in nanoseconds."""
    seconds, _, cells = row.partition(",")
    return f"{round(float(seconds) * SECOND)},{cells}"


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def test_only_complete_new_lines_are_read_and_the_file_is_not_kept_open(tmp_path):
    path = tmp_path / "epochs.jsonl"
    file = AppendedFile(path)
    assert file.new_lines() == ([], False)
    for text, new in (("one\ntw", ([b"one"], True)), ("", ([], False)), ("o\nthree\n", ([b"two", b"three"], False))):
        append(path, text)
        assert file.new_lines() == new
    os.truncate(path, 4)
    assert file.new_lines() == ([b"one"], True)
    append(tmp_path / "new", "one\nother\nthird\n")
    os.replace(tmp_path / "new", path)
    assert file.new_lines() == ([b"one", b"other", b"third"], True)
    append(path, "".join(f"row {number}\n" for number in range(10)))
    newest = AppendedFile(path, max_bytes=16)
    assert (newest.new_lines(), newest.first_line) == (([b"row 8", b"row 9"], True), b"one"), "its last complete lines"
    assert str(path) not in {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}


def test_a_read_that_returns_less_is_continued_by_the_next(tmp_path, monkeypatch):
    class Slow(FileIO):
        def read(self, size):
            return super().read(min(size, 4))

    monkeypatch.setattr(appended, "open_file", Slow)
    append(tmp_path / "epochs.jsonl", "1\n2\n34\n5\n")
    file = AppendedFile(tmp_path / "epochs.jsonl")
    assert [line for _ in range(4) for line in file.new_lines()[0]] == [b"1", b"2", b"34", b"5"]


def test_samples_are_means_per_second_with_the_last_sample_and_without_unread_cells(tmp_path):
    path = tmp_path / "power.csv"
    rows = ["4,,", "5,1,10", "5.1,,30", "7,3,4"]
    append(path, "monotonic_ns,gpu_w,total_w\n" + "".join(f"{stamp(row)}\n" for row in rows) + stamp("8,5"))
    samples = RecentSamples(path)
    power = samples.read(100.0)
    assert (power["total_w"].times_s, power["total_w"].values, power["total_w"].latest) == ([105, 107], [20, 4], 4)
    assert power["gpu_w"].values == [1, 3]
    append(path, ",6\ndamaged\n\xff\n")
    assert samples.read(0.0)["total_w"].latest == 6


def test_samples_of_the_last_minutes_and_since_the_last_reboot_only_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(appended, "HISTORY_S", 3)
    path = tmp_path / "power.csv"
    rows = (f"{second * SECOND},{second},{1 if second < 907 else ''}\n" for second in range(900, 910))
    append(path, "monotonic_ns,total_w,gone_w\n" + "".join(rows))
    samples = RecentSamples(path)
    power = samples.read(0.0)
    assert {name: series.values for name, series in power.items()} == {"total_w": [907, 908, 909]}
    assert samples.read(0.0) is power, "the same objects without new samples"
    append(path, f"{5 * SECOND},2\n{6 * SECOND},4\n")
    assert samples.read(100.0)["total_w"].times_s == [105, 106]


@pytest.mark.parametrize(("cell", "throttling"), [("none", ""), ("gpu0 heat", "gpu0 heat"), (None, None)])
def test_throttling_is_the_last_text_of_its_column(tmp_path, cell, throttling):
    column, value = ("", "") if cell is None else (",throttling", f",{cell}")
    rows = f"{SECOND},0.5{value}\n{2 * SECOND},{value}\n"
    append(tmp_path / "gauges.csv", f"monotonic_ns,cpu_utilization{column}\n{rows}")
    samples = RecentSamples(tmp_path / "gauges.csv")
    assert samples.read(0.0)["cpu_utilization"].values == [0.5], "the second row has none"
    assert samples.throttling == throttling
