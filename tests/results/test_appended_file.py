"""Reading of growing files: only complete lines, and only those that are new."""

import os
from io import FileIO

import pytest

from epochmeter.results import appended_file
from epochmeter.results.appended_file import MAX_HEADER_BYTES, AppendedFile, WindowLog
from epochmeter.shared.record import Record


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def window(epoch, steps=10):
    return {"window": "epoch", "epoch": epoch, "opened_ns": 0, "closed_ns": 1, "metrics": {"epoch/steps": steps},
            "energy": {"opened_ns": 0, "closed_ns": 1, "term": {}}}  # fmt: skip


def epochs_after(log, count):
    windows, steps = log.after(count)
    return [window["epoch"] for window in windows], steps


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

    monkeypatch.setattr(appended_file, "open_file", Slow)
    append(tmp_path / "epochs.jsonl", "1\n2\n34\n5\n")
    file = AppendedFile(tmp_path / "epochs.jsonl")
    assert [line for _ in range(4) for line in file.new_lines()[0]] == [b"1", b"2", b"34", b"5"]


def test_lines_longer_than_a_header_are_read(tmp_path):
    """The line of an epoch has a part of each of hundreds of ranks."""
    line = "x" * (2 * MAX_HEADER_BYTES)
    file = AppendedFile(tmp_path / "epochs.jsonl")
    append(tmp_path / "epochs.jsonl", line)
    assert file.new_lines()[0] == []
    append(tmp_path / "epochs.jsonl", f"\n{line}\n")
    assert [len(line) for line in file.new_lines()[0]] == [len(line)] * 2


def test_windows_are_parsed_once_and_kept_until_the_reader_has_them(tmp_path, monkeypatch):
    record, log, parsed = Record(tmp_path), WindowLog(tmp_path), []
    parse = appended_file.parse_window
    monkeypatch.setattr(appended_file, "parse_window", lambda line: parsed.append(line) or parse(line))
    assert epochs_after(log, 0) == ([], 0)
    for epoch in range(3):
        record.append(window(epoch))
    assert epochs_after(log, 0) == ([0, 1, 2], 0)
    assert epochs_after(log, 2) == ([2], 20)
    record.append(window(3, steps=5))
    assert epochs_after(log, 2) == ([2, 3], 20)
    assert epochs_after(log, 4) == ([], 35)
    assert len(parsed) == 4


def test_windows_are_read_again_for_a_reader_that_has_lost_them_and_of_a_file_that_was_replaced(tmp_path):
    record, log = Record(tmp_path), WindowLog(tmp_path)
    for epoch in range(3):
        record.append(window(epoch))
    assert epochs_after(log, 3) == ([], 30)
    assert epochs_after(log, 1) == ([1, 2], 10), "its destination was deleted"
    record.truncate_to_epoch(1)
    record.append(window(7))
    assert epochs_after(log, 1) == ([7], 10)


def test_no_window_follows_a_damaged_one(tmp_path):
    record, log = Record(tmp_path), WindowLog(tmp_path)
    record.append(window(0))
    append(tmp_path / "epochs.jsonl", "damaged\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="1 unreadable line"):
            log.after(0)
    (tmp_path / "epochs.jsonl").unlink()
    (tmp_path / "epochs.jsonl").mkdir()
    with pytest.raises(OSError, match="cannot be read"):
        WindowLog(tmp_path).check()
