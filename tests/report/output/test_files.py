"""The files of a report: which are written, replaced and removed."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import ddp, row, trained

from epochmeter.report.build import build_report
from epochmeter.report.charts import draw
from epochmeter.report.output import files
from epochmeter.report.runs.run import Sweep


def report(*rows):
    return build_report(Sweep(Path("multirun/2026-11-20_12-00-00-aa"), rows, {}))


def batches(*speeds):
    """Runs of a sweep whose epoch times are divided into all parts."""
    steady = {"data_stall_s": 0.05, "copy_s": 0.01, "overhead_s": 0.02}
    return [replace(trained(n, speed, steady=steady, batch=8 * 2**n, typed={"batch": str(8 * 2**n)}), sweep="some")
            for n, speed in enumerate(speeds)]  # fmt: skip


def write(content, folder):
    """Write a report, and return its files and the messages."""
    messages = []
    folder.mkdir(exist_ok=True)
    written = files.write_report(content, folder, messages.append)
    return [path.relative_to(folder).as_posix() for path in written], messages


def test_report_has_a_page_charts_and_a_table_and_replaces_charts_of_an_earlier_one_only(tmp_path):
    folder, content = tmp_path / "made", report(*batches(100.0, 200.0))
    (folder / "report").mkdir(parents=True)
    (folder / "report/mine.png").touch()
    written, messages = write(content, folder)
    assert (messages, written[0]) == ([], "report.html")
    assert {"report.csv", "report.md", "report/epoch_parts.png", "report/epoch_parts.svg"} <= set(written)
    assert all((folder / name).stat().st_size for name in written)
    with open(folder / "report.csv", newline="") as file:
        assert [line["batch"] for line in csv.DictReader(file)] == ["8", "16"]
    assert (folder / "report.md").read_text().startswith("# some\n")
    assert (folder / "report/mine.png").exists(), "there was no earlier report"
    (folder / "report/old.svg").touch()
    assert set(write(content, folder)[0]) == set(written)
    assert not (folder / "report/old.svg").exists()


def test_each_link_of_the_contents_leads_to_one_place(tmp_path):
    write(report(trained(0, 100.0), ddp(1, 190.0)), tmp_path)
    page = (tmp_path / "report.html").read_text()
    links, ids = re.findall(r'href="#([^"]+)"', page), re.findall(r' id="([^"]+)"', page)
    assert {"efficiency", "scaling", "all-runs"} <= {*links} <= {*ids}
    assert (len(links), len(ids)) == (len({*links}), len({*ids}))


def test_pages_of_an_earlier_report_are_removed_and_other_files_kept_also_without_the_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "find_spec", lambda name: None if name in ("vl_convert", "itables") else name)
    for name in ("comparison.md", "scaling.json", "notes.md"):
        (tmp_path / name).write_text("written by a sweep or a person")
    write(report(trained(0, 100.0), ddp(1, 190.0)), tmp_path)
    assert (tmp_path / "comparison.md").exists(), "there was no earlier report"
    assert (tmp_path / "questions.md").exists()
    written, (message,) = write(report(*batches(100.0, 200.0)), tmp_path)
    assert written == ["report.csv", "report.md", "answer.json", "answer.md"]
    assert "vl_convert, itables" in message
    there = {path.name for path in tmp_path.iterdir() if path.suffix in (".md", ".json")}
    assert there == {"answer.md", "answer.json", "report.md", "notes.md"}


def test_charts_that_cannot_be_drawn_are_an_error_that_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(draw.sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match=f"could not be drawn in {tmp_path}"), files.write_errors(tmp_path):
        write(report(*batches(100.0, 200.0)), tmp_path)


@pytest.mark.parametrize("in_the_way", ["", "report", "report.csv/"])
def test_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path, in_the_way):
    """There is a file in place of a folder, or a folder in place of a file."""
    path = (folder := tmp_path / "made") / in_the_way
    path.parent.mkdir(exist_ok=True)
    if in_the_way.endswith("/"):
        (path / "some").mkdir(parents=True)
    else:
        path.write_text("in the way")
    with pytest.raises(ValueError, match=rf"{folder}: .*{path.name}.*\n.*hint: .*out="), files.write_errors(folder):
        write(report(*batches(100.0, 200.0)), folder)


@pytest.mark.parametrize("run", [row(0, "storage", None), trained(0, 100.0, steady={"e2e_s": None})])
def test_single_run_has_a_report_even_without_metrics(tmp_path, run):
    written, _ = write(report(run), tmp_path)
    assert {"report.html", "report.csv", "report.md"} <= set(written)
