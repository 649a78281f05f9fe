"""Reports and analyses of a sweep: which are printed, which files are written, replaced and removed, and the page."""

import base64
import csv
import gzip
import io
import json
import multiprocessing
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from project import LIMIT_S
from rich.console import Console
from sweeps import ddp, row, rows, trained
from sweeps import write as write_run

from epochmeter.report.build import Report, build_report
from epochmeter.report.charts import vega
from epochmeter.report.output import report as output
from epochmeter.report.render import Page, escape_markdown
from epochmeter.report.runs.run import Sweep
from epochmeter.results.reuse import write_reference

EVIL = "<script>alert(1)</script> & $x_1$"
CHARTS = [
    vega.Chart(name, f"Title of {name}", {"datasets": {"x": [EVIL]}}, {"scope": EVIL}, name == "third")
    for name in ("first", "second", "third")
]


def report(*runs):
    return build_report(Sweep(Path("multirun/2026-11-20_12-00-00-aa"), runs, {}))


def batches(*speeds):
    """Runs of a sweep with different batch sizes."""
    return [trained(n, speed, batch=8 * 2**n, typed={"batch": str(8 * 2**n)}) for n, speed in enumerate(speeds)]


def write(content, folder, artist=None):
    """Write a report, and return its files and the messages."""
    messages = []
    folder.mkdir(exist_ok=True)
    written = output.write_report(content, folder, lambda *texts: messages.extend(texts), artist)
    return [path.relative_to(folder).as_posix() for path in written], messages


def drawing(content):
    pytest.importorskip("vl_convert")
    artist = vega.Artist()
    artist.draw(content.charts)
    return artist


def test_charts_of_a_report_that_ended_early_cause_no_error():
    artist = drawing(report(trained(0, 100.0)))
    (process,) = multiprocessing.active_children()
    del artist  # closes the pipe, as the end of the report does
    process.join(LIMIT_S)
    assert process.exitcode == 0


def test_report_has_page_charts_and_table_and_replaces_charts_of_an_earlier_one(tmp_path):
    parts = {"data_stall_s": 0.05, "copy_s": 0.01, "overhead_s": 0.02}
    runs = [trained(0, 100.0, steady=parts), ddp(1, 190.0, steady=parts)]
    folder, content = tmp_path / "made", report(*(replace(run, sweep="some") for run in runs))
    (folder / "report").mkdir(parents=True)
    (folder / "report/mine.png").touch()
    written, messages = write(content, folder, drawing(content))
    assert (messages, written[0]) == ([], "report.html")
    images = {f"report/{name}.{suffix}" for name in ("epoch_parts", "efficiency") for suffix in ("png", "svg")}
    assert {"report.csv", "report.md"} | images <= set(written)
    assert all((folder / name).stat().st_size for name in written)
    assert (folder / "report/epoch_parts.png").read_bytes().startswith(b"\x89PNG")
    with open(folder / "report.csv", newline="") as file:
        assert [line["run.devices"] for line in csv.DictReader(file)] == ["1", "2"]
    assert (folder / "report.md").read_text().startswith("# some\n")
    page = (folder / "report.html").read_text()
    links, ids = re.findall(r'href="#([^"]+)"', page), re.findall(r' id="([^"]+)"', page)
    assert {"efficiency", "scaling", "all-runs"} <= {*links} <= {*ids}
    assert (len(links), len(ids)) == (len({*links}), len({*ids})), "each link of the contents leads to one place"
    assert (folder / "report/mine.png").exists(), "there was no earlier report"
    (folder / "report/old.svg").touch()
    assert set(write(content, folder, drawing(content))[0]) == set(written)
    assert not (folder / "report/old.svg").exists()


def test_table_of_runs_has_the_warnings_of_the_report(tmp_path):
    write(report(trained(0, 100.0, rehearsal=("device=nano",))), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "\n\n**REHEARSAL, not a result of the requested configuration: device=nano" in text


def test_pages_of_an_earlier_report_are_removed_and_other_files_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(vega, "find_spec", lambda name: None if name in ("vl_convert", "itables") else name)
    for name in ("comparison.md", "scaling.json", "notes.md"):
        (tmp_path / name).write_text("written by a sweep or a person")
    write(report(trained(0, 100.0), ddp(1, 190.0)), tmp_path)
    assert (tmp_path / "comparison.md").exists(), "there was no earlier report"
    assert (tmp_path / "questions.md").exists()
    (tmp_path / "report.html").touch()
    written, (message,) = write(report(*batches(100.0, 200.0)), tmp_path)
    assert written == ["report.csv", "report.md", "answer.json", "answer.md"]
    assert "vl_convert, itables" in message
    there = {path.name for path in tmp_path.iterdir() if path.suffix in (".md", ".json", ".html")}
    assert there == {"answer.md", "answer.json", "report.md", "notes.md"}
    for run in (row(0, "storage", None), trained(0, 100.0, steady={"e2e_s": None})):
        assert {"report.csv", "report.md"} <= set(write(report(run), tmp_path)[0]), "also without metrics"


def test_charts_that_cannot_be_drawn_are_an_error_that_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/bin/false")
    content = report(*batches(100.0, 200.0))
    with pytest.raises(ValueError, match=f"to {tmp_path}"), output.write_errors(tmp_path):
        write(content, tmp_path, drawing(content))


def test_files_of_a_report_replace_links_and_nothing_is_written_through_one(tmp_path):
    """The sweep may be from another user, and a link in it may point to any file of the reader."""
    (private := tmp_path / "private").mkdir()
    for name in ("page", "1.png"):
        (private / name).write_text("private")
    folder, content = tmp_path / "sweep", report(*batches(100.0, 200.0))
    (folder / "report").mkdir(parents=True)
    linked = ["report.html", "report.md", "answer.json", *(f"report/{chart.name}.png" for chart in content.charts)]
    for name in linked:
        (folder / name).symlink_to(private / "page")
    written, _ = write(content, folder, drawing(content))
    assert {*linked} <= {*written}
    assert not any((folder / name).is_symlink() for name in written)
    shutil.rmtree(folder / "report")
    (folder / "report").symlink_to(private)
    with pytest.raises(ValueError, match="it is a link"), output.write_errors(folder):
        write(content, folder)
    assert {path.name: path.read_text() for path in private.iterdir()} == {"page": "private", "1.png": "private"}


@pytest.mark.parametrize("in_the_way", ["", "report.md/", "report.csv/"])
def test_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path, in_the_way):
    """There is a file in place of a folder, or a folder in place of a file."""
    path = (folder := tmp_path / "made") / in_the_way
    if in_the_way:
        (path / "some").mkdir(parents=True)
    else:
        path.write_text("in the way")
    with pytest.raises(ValueError, match=rf"{folder}: .*{path.name}.*\n.*hint: .*out="), output.write_errors(folder):
        write(report(*batches(100.0, 200.0)), folder)


def test_texts_have_the_warnings_and_notes_of_their_report(tmp_path):
    why = "strategy.ranks=2 requested, this machine has 1 GPU"
    runs = [trained(0, 100.0), ddp(1, 190.0), replace(ddp(2, 999.0), state="failed")]
    content = report(*(replace(run, rehearsal=[why]) for run in runs))
    write(content, tmp_path)
    page = (tmp_path / "scaling.md").read_text()
    assert page.startswith(f"# Scaling: {content.title}\n\n**REHEARSAL, not a result of the requested configuration")
    (values,) = json.loads((tmp_path / "scaling.json").read_text())
    assert (values["kind"], values["efficiency"]["value"]) == ("weak", pytest.approx(0.95))
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None, highlight=False)
    output.print_report(content, console)
    text = " ".join(console.file.getvalue().split())
    assert "devices ddp x 2, batch 64, scaling weak, samples/s 190, speed-up 1.90" in text, (
        "numbers are complete in a narrow terminal"
    )
    for each in (text, page):
        assert why in each
        assert "Left out: 1 of 3 runs: not completed (failed)." in each
        assert "999" not in each


def test_answer_and_report_command_are_one_line_each(tmp_path):
    energy = {"source": "counter", "covers": "gpu0", "reason": None}
    for number, (e2e_s, joules) in enumerate([(2.0, 30.0), (1.0, 40.0), (4.0, 20.0)]):
        keys = {"batch": 8 * (number + 1)}
        run = row(number, "storage", e2e_s, steady={"energy_j": joules}, job_keys=keys, typed=keys)
        write_run(tmp_path / "sweep", run, energy=energy)
        opening = "Answer:  Fastest so far: " if number else "Answer:  Only one configuration: "
        assert output.answer_lines(tmp_path / "sweep")[0].startswith(opening)
    answer, command = output.answer_lines(tmp_path / "sweep")
    assert "Fastest so far: " in answer
    assert answer.index("batch 16") < answer.index("Least energy so far: ") < answer.index("batch 24")
    assert command.startswith(f"Report:  python src/report.py sweep={tmp_path / 'sweep'}")
    write_run(
        tmp_path / "sweep", row(3, "storage", 0.5, steady={"energy_j": 9.0}, job_keys={"batch": 1}), energy=energy
    )
    best = "Fastest and least energy so far: batch 1: 0.500 s per epoch, 9.00 J (1 run each: not established; "
    assert best in output.answer_lines(tmp_path / "sweep")[0]
    other = write_run(tmp_path / "other", row(0, "storage", 0.25, job_keys={"batch": 2}))
    other.describe(other.job(), {**other.run(), "record_id": "r"})
    (tmp_path / "sweep" / "4").mkdir()
    write_reference(tmp_path / "sweep" / "4", other, ["batch=2"])
    answer, _ = output.answer_lines(tmp_path / "sweep")
    best = r"^Answer:  Fastest so far: batch 2: 0.250 s .* 1 of 5 runs reused: not established"
    assert re.search(best, answer), answer
    assert output.answer_lines(tmp_path / "empty") == []


@pytest.mark.parametrize(
    ("rehearsal", "expected"),
    [
        ([], "fetch-bound"),
        (
            ["rehearse=true"],
            "no setting in which the runs may differ was applied (2 rehearsals): ",
        ),
    ],
)
def test_answer_of_a_stall_experiment_is_its_bottleneck_unless_it_is_a_rehearsal(tmp_path, rehearsal, expected):
    for run in rows([1.5, 1.6], [3.7, 3.8], [12.0, 12.1]):
        write_run(tmp_path, run, rehearsal=rehearsal)
    answer, _ = output.answer_lines(tmp_path)
    assert answer.startswith("Answer: ")
    assert expected in answer


def test_answer_states_how_many_runs_were_disturbed(tmp_path):
    records = [
        write_run(tmp_path, row(number, "storage", 1.0 + number, job_keys={"batch": 8 + number})) for number in range(2)
    ]
    for record, flags in zip(records, ({}, {"paused": "epoch 1: paused"}), strict=True):
        record.describe(record.job(), {**record.run(), "flags": flags})
    answer, _ = output.answer_lines(tmp_path)
    assert "1 of 2 runs disturbed: not established" in answer
    alone = write_run(tmp_path / "one", row(0, "storage", 1.0))
    alone.describe(alone.job(), {**alone.run(), "flags": {"paused": "epoch 1: paused"}})
    _, warning, _ = output.answer_lines(tmp_path / "one")
    assert warning.startswith("warning: The run was disturbed (the run was paused): ")
    for record in records:
        record.describe(record.job(), {**record.run(), "flags": {"oversubscribed": "epoch 1: oversubscribed: x"}})
    _, warning, _ = output.answer_lines(tmp_path)
    assert warning.startswith("warning: Both runs were oversubscribed, ")


@pytest.fixture
def html_of(monkeypatch):
    """Render a page from the texts of analyses by name: all have an `opening` and a `body`, some a `summary`."""
    pytest.importorskip("vl_convert")

    def render(template, macro, results, **_):
        texts = ("body", "summary") if template in ("answer.md.j2", "failures.md.j2") else ("body", "opening")
        return f"{macro}: {escape_markdown(results)}" if macro in texts else ""

    monkeypatch.setattr("epochmeter.report.render.render_macro", render)

    def html_of(charts=CHARTS, table="", texts=(), title="a sweep", **analyses):
        pages = [Page(name, text) for name, text in analyses.items()]
        return output.report_html(Report(title, "", (), pages, charts, texts, texts), table)

    return html_of


def unpacked(html, name):
    (letters,) = re.findall(rf'id="{name}">([^<]*)<', html)
    return gzip.decompress(base64.b64decode(letters)).decode()


def test_page_is_one_file_in_which_names_stay_text_and_parts_are_in_order(html_of):
    html = html_of(
        CHARTS, "<p>the table</p>", [f"{EVIL} `host.`"], EVIL, failures="no", scaling="1.9 times", answer=EVIL
    )
    packed = json.loads(unpacked(html, "specs"))
    assert packed["specs"] == {chart.name: chart.spec for chart in CHARTS}
    assert packed["themes"].keys() == {"light", "dark"}
    assert ("vegaEmbed" in unpacked(html, "vega"), unpacked(html, "runs-packed")) == (True, "<p>the table</p>")
    assert not re.findall(r'(?:src|href)="(?!#)', html), "nothing is fetched"
    assert "default-src 'none'" in html
    assert "alert(1)</script>" not in html
    assert unescape(html).count(EVIL) >= 8
    assert html.count("<code>host.</code>") == 2, "in the banner and in the notes"
    parts = ['role="alert"', "opening: 1.9 times", "summary: ", 'figure id="first"', 'section id="scaling"',
             'section id="answer"', 'figure id="second"', "<details>", 'figure id="third"', "</details>",
             'id="all-runs"', 'section id="failures"', 'id="notes"']  # fmt: skip
    places = [html.index(part) for part in parts]
    assert places == sorted(places)


def test_page_starts_with_three_sentences_at_most(html_of):
    for analyses, first, absent in (
        ({"stalls": 1, "scaling": 2, "comparison": 3, "answer": 4}, [f"opening: {n}" for n in (1, 2, 3)], "summary: 4"),
        ({"answer": "batch 8", "targets": "batch 16"}, ["opening: batch 16"], "summary: batch 8"),
        ({"failures": "out of memory"}, ["summary: out of memory"], "opening"),
        ({"answer": "batch 8", "failures": "no memory"}, ["summary: batch 8", "summary: no memory"], "opening"),
    ):
        html = html_of(**analyses)
        summary = html[html.index('class="summary"') :].partition("</section>")[0]
        assert re.findall(r"<p>(.*)</p>", summary) == first
        assert absent not in summary


def test_sentences_at_the_start_of_a_page_are_not_repeated_in_their_section():
    pytest.importorskip("vl_convert")
    html = output.report_html(report(*batches(100.0)))
    start, section = html.index('class="summary"'), html.index('<section id="answer"')
    assert html.index("Only one configuration") in range(start, section)
    assert html.count("Only one configuration") == 1
    assert "<h2>More about the answer</h2>" in html[section:]


def test_page_and_section_of_a_verdict_begin_with_its_warning():
    pytest.importorskip("vl_convert")
    runs = batches(100.0, 200.0)
    content = report(replace(runs[0], disturbed={"paused": "epoch 1: paused"}), runs[1])
    html = output.report_html(content)
    for start in ('class="summary"', 'id="answer"'):
        (first, *_) = re.findall(r"<p>(.*)</p>", html[html.index(start) :])
        assert first.startswith("<strong>1 of 2 runs was disturbed (the run was paused): ")


def test_absent_parts_have_no_place(html_of):
    html = html_of([])
    parts = ("<figure", "All runs", 'id="vega"', 'id="notes"', 'class="summary"')
    assert [part for part in parts if part in html] == []
    assert output.pack("text") == output.pack("text"), "equal pages are equal files"
