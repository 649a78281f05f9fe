"""The files of a report: which are written, replaced and removed."""

import csv
import queue
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import row, trained

from epochmeter.report.build import ReportOptions, build_report
from epochmeter.report.charts import draw
from epochmeter.report.output import files
from epochmeter.report.runs.run import Sweep


def report(*rows, **options):
    return build_report(Sweep(Path("multirun/2026-11-20_12-00-00-aa"), rows, {}), ReportOptions(**options))


def parts(number, speed, **keys):
    """A run whose epoch time is divided into all parts."""
    steady = {"data_stall_s": 0.05, "copy_s": 0.01, "overhead_s": 0.02}
    return trained(number, speed, steady=steady, **keys)


def batches(*speeds):
    return [
        replace(parts(number, speed, batch=8 * 2**number, typed={"batch": str(8 * 2**number)}), sweep="some")
        for number, speed in enumerate(speeds)
    ]


def write(content, folder):
    """Write a report, and return its files and the messages."""
    messages = []
    folder.mkdir(exist_ok=True)
    written = files.write_report(content, folder, messages.append)
    return [path.relative_to(folder).as_posix() for path in written], messages


def test_report_has_a_page_charts_and_a_table(tmp_path):
    written, messages = write(report(*batches(100.0, 200.0)), tmp_path / "made")
    assert messages == []
    assert written[0] == "report.html"
    assert {"report.csv", "report.md", "report/epoch_parts.png", "report/epoch_parts.svg"} <= set(written)
    assert all((tmp_path / "made" / name).stat().st_size for name in written)
    with open(tmp_path / "made" / "report.csv", newline="") as file:
        assert [line["batch"] for line in csv.DictReader(file)] == ["8", "16"]
    assert (tmp_path / "made" / "report.md").read_text().startswith("# some\n")


def test_charts_of_an_earlier_report_are_removed_and_other_files_kept(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "mine.png").touch()
    content = report(*batches(100.0, 200.0))
    write(content, tmp_path)
    assert (tmp_path / "report" / "mine.png").exists(), "there was no earlier report"
    (tmp_path / "report" / "old.svg").touch()
    written, _ = write(content, tmp_path)
    assert not (tmp_path / "report" / "old.svg").exists()
    assert "report/epoch_parts.svg" in written


@pytest.mark.parametrize("has_packages", [True, False])
def test_pages_of_an_earlier_report_are_removed_and_other_files_kept(tmp_path, monkeypatch, has_packages):
    if not has_packages:
        monkeypatch.setattr(draw, "find_spec", lambda name: None)
    for name in ("comparison.md", "scaling.json", "notes.md"):
        (tmp_path / name).write_text("written by a sweep or a person")
    two = [trained(0, 100.0), trained(1, 190.0, strategy="ddp", ranks=2)]
    write(report(*two), tmp_path)
    assert (tmp_path / "comparison.md").exists(), "there was no earlier report"
    assert (tmp_path / "questions.md").exists()
    written, _ = write(report(*batches(100.0, 200.0)), tmp_path)
    assert {"answer.md", "answer.json"} <= set(written)
    there = {path.name for path in tmp_path.iterdir() if path.suffix in (".md", ".json")}
    assert there == {"answer.md", "answer.json", "report.md", "notes.md"}


def test_without_the_packages_for_pages_the_table_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "find_spec", lambda name: None if name in ("vl_convert", "itables") else name)
    written, messages = write(report(*batches(100.0, 200.0)), tmp_path)
    assert written == ["report.csv", "report.md", "answer.json", "answer.md"]
    assert len(messages) == 1
    assert "vl_convert, itables" in messages[0]


def test_charts_that_cannot_be_drawn_are_an_error_that_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(draw.sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match=f"could not be drawn in {tmp_path}"), files.locked(tmp_path, print):
        write(report(*batches(100.0, 200.0)), tmp_path)


@pytest.mark.parametrize("in_the_way", ["", "report", "report.csv"])
def test_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path, in_the_way):
    """There is a file in place of a folder, or a folder in place of a file."""
    folder = tmp_path / "made"
    (folder / in_the_way).parent.mkdir(exist_ok=True)
    if in_the_way == "report.csv":
        (folder / in_the_way / "some").mkdir(parents=True)
    else:
        (folder / in_the_way).write_text("in the way")
    with pytest.raises(ValueError, match=f"{folder}: .*{in_the_way}.*out="), files.locked(folder, print):
        write(report(*batches(100.0, 200.0)), folder)


def test_second_report_waits_for_the_first_with_a_message(tmp_path):
    messages, order = queue.Queue(), []

    def second():
        with files.locked(tmp_path, messages.put):
            order.append("second")

    with files.locked(tmp_path, order.append):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert str(tmp_path) in messages.get(timeout=60)
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]


@pytest.mark.parametrize(
    "rows", [[row(0, "storage", 1.0)], [row(0, "storage", None)], [trained(0, 100.0, steady={"e2e_s": None})]]
)
def test_single_run_has_a_report_even_without_metrics(tmp_path, rows):
    written, _ = write(report(*rows), tmp_path)
    assert {"report.html", "report.csv", "report.md"} <= set(written)
