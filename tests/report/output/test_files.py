"""The files of a report: what is left where, and what is gone."""

import csv
import queue
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import row, trained

from epochmeter.report.build import ReportOptions, build_report
from epochmeter.report.output import files
from epochmeter.report.runs.run import Sweep


def report(*rows, **asked):
    return build_report(Sweep(Path("multirun/2026-11-20_12-00-00-aa"), rows, {}), ReportOptions(**asked))


def parts(number, speed, **keys):
    """A run that knows where its time went."""
    steady = {"data_stall_s": 0.05, "copy_s": 0.01, "overhead_s": 0.02}
    return trained(number, speed, steady=steady, **keys)


def batches(*speeds):
    return [
        replace(parts(number, speed, batch=8 * 2**number, typed={"batch": str(8 * 2**number)}), sweep="some")
        for number, speed in enumerate(speeds)
    ]


def left(told, folder):
    said = []
    folder.mkdir(exist_ok=True)
    written = files.write_report(told, folder, said.append)
    return [path.relative_to(folder).as_posix() for path in written], said


def test_a_report_is_a_page_pictures_and_a_table(tmp_path):
    written, said = left(report(*batches(100.0, 200.0)), tmp_path / "made")
    assert said == []
    assert written[0] == "report.html"
    assert {"report.csv", "report.md", "report/epoch_parts.png", "report/epoch_parts.svg"} <= set(written)
    assert all((tmp_path / "made" / name).stat().st_size for name in written)
    with open(tmp_path / "made" / "report.csv", newline="") as file:
        assert [line["batch"] for line in csv.DictReader(file)] == ["8", "16"]
    assert (tmp_path / "made" / "report.md").read_text().startswith("# some\n")


def test_an_analysis_has_its_numbers_and_a_page_of_its_own_too(tmp_path):
    written, _ = left(report(trained(0, 100.0), trained(1, 190.0, strategy="ddp", ranks=2)), tmp_path)
    assert {"scaling.json", "scaling.md"} <= set(written)


def test_pictures_of_an_earlier_report_are_gone_and_others_stay(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "mine.png").touch()
    told = report(*batches(100.0, 200.0))
    left(told, tmp_path)
    assert (tmp_path / "report" / "mine.png").exists(), "no report lay there"
    (tmp_path / "report" / "old.svg").touch()
    written, _ = left(told, tmp_path)
    assert not (tmp_path / "report" / "old.svg").exists()
    assert "report/epoch_parts.svg" in written


@pytest.mark.parametrize("drawn", [True, False])
def test_pages_of_an_earlier_report_are_gone_and_others_stay(tmp_path, monkeypatch, drawn):
    if not drawn:
        monkeypatch.setattr(files, "find_spec", lambda name: None)
    for name in ("comparison.md", "scaling.json", "notes.md"):
        (tmp_path / name).write_text("as a sweep left it, or a person")
    two = [trained(0, 100.0), trained(1, 190.0, strategy="ddp", ranks=2)]
    left(report(*two), tmp_path)
    assert (tmp_path / "comparison.md").exists(), "no report lay there"
    assert (tmp_path / "questions.md").exists()
    written, _ = left(report(*batches(100.0, 200.0)), tmp_path)
    assert {"answer.md", "answer.json"} <= set(written)
    there = {path.name for path in tmp_path.iterdir() if path.suffix in (".md", ".json")}
    assert there == {"answer.md", "answer.json", "report.md", "notes.md"}


def test_without_what_pages_are_made_with_the_table_is_left_and_how_to_have_the_rest_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None if name in ("altair", "itables") else name)
    written, said = left(report(*batches(100.0, 200.0)), tmp_path)
    assert written == ["report.csv", "report.md", "answer.json", "answer.md"]
    assert said == ["No page and no charts: altair, itables not installed. For them: make .venv/.with-report"]


def test_what_differs_between_hosts_has_a_page_without_numbers(tmp_path):
    rows = [replace(each, platform={"CPU": f"{each.number} cores"}) for each in batches(100.0, 200.0)]
    written, _ = left(report(*rows), tmp_path)
    assert "differences.md" in written
    assert not (tmp_path / "differences.json").exists()
    assert "| CPU | 0 cores |" in (tmp_path / "differences.md").read_text()


@pytest.mark.parametrize("in_the_way", ["", "report", "report.csv"])
def test_what_cannot_be_written_is_said_with_what_to_do(tmp_path, in_the_way):
    """A file where a folder is to be, or a folder where a file is."""
    folder = tmp_path / "made"
    (folder / in_the_way).parent.mkdir(exist_ok=True)
    if in_the_way == "report.csv":
        (folder / in_the_way / "some").mkdir(parents=True)
    else:
        (folder / in_the_way).write_text("in the way")
    said = f"The report cannot be written to {folder}: .*{in_the_way}.*Name another folder: out="
    with pytest.raises(ValueError, match=said), files.locked(folder, print):
        left(report(*batches(100.0, 200.0)), folder)


def test_a_second_report_waits_for_the_first_and_says_so(tmp_path):
    said, order = queue.Queue(), []

    def second():
        with files.locked(tmp_path, said.put):
            order.append("second")

    with files.locked(tmp_path, order.append):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert said.get(timeout=60) == f"Waiting for another report that is written to {tmp_path}."
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second"]


@pytest.mark.parametrize(
    "rows", [[row(0, "storage", 1.0)], [row(0, "storage", None)], [trained(0, 100.0, steady={"e2e_s": None})]]
)
def test_one_run_and_one_that_says_little_have_a_report_too(tmp_path, rows):
    written, _ = left(report(*rows), tmp_path)
    assert {"report.html", "report.csv", "report.md"} <= set(written)
