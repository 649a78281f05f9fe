"""The HTML page as a file: it contains everything, fetches nothing, and shows names as text."""

import base64
import gzip
import json
import re
from html import unescape

import pytest

from epochmeter.report.build import Report
from epochmeter.report.charts.vega import Chart
from epochmeter.report.output.report import pack, report_html
from epochmeter.report.render import Page, escape_markdown

pytest.importorskip("vl_convert")
EVIL = "<script>alert(1)</script> & $x_1$"
CHARTS = [
    Chart(name, f"Title of {name}", {"datasets": {"x": [EVIL]}}, {"scope": EVIL}, name == "third")
    for name in ("first", "second", "third")
]


def page(name, text=""):
    """An analysis whose template shows this text as body; that of `answer` also as summary."""
    return Page(name, text)


def html_of(pages, charts=CHARTS, table="", notes=(), banner=(), title="a sweep"):
    return report_html(Report(title, (), pages, charts, banner, notes), table)


@pytest.fixture(autouse=True)
def templates(monkeypatch):
    """Replace the templates of analyses by their results."""

    def render(template, macro, results, **_):
        texts = ("body", "summary") if template in ("answer.md.j2", "failures.md.j2") else ("body", "opening")
        return f"{macro}: {escape_markdown(results)}" if macro in texts else ""

    monkeypatch.setattr("epochmeter.report.render.render_macro", render)


def unpacked(html, name):
    (letters,) = re.findall(rf'id="{name}">([^<]*)<', html)
    return gzip.decompress(base64.b64decode(letters)).decode()


def test_everything_is_in_the_file():
    html = html_of([page("scaling")], CHARTS, "<p>the table</p>", ["Left out: 1 of 9 runs: not completed."])
    packed = json.loads(unpacked(html, "specs"))
    assert packed["specs"] == {chart.name: chart.spec for chart in CHARTS}
    assert packed["themes"].keys() == {"light", "dark"}
    assert "vegaEmbed" in unpacked(html, "vega")
    assert unpacked(html, "runs-packed") == "<p>the table</p>"
    assert "Left out: 1 of 9 runs: not completed." in html
    assert not re.findall(r'(?:src|href)="(?!#)', html), "nothing is fetched"
    assert "default-src 'none'" in html


def test_order_is_summary_first_chart_answer_charts_analyses_table():
    pages = [page("failures"), page("scaling", "1.9 times"), page("answer", "Fastest: batch 8.")]
    html = html_of(pages, CHARTS, "<p>the table</p>", ["Left out."], ["REHEARSAL"])
    parts = ['role="alert"', "opening: 1.9 times", "summary: Fastest: batch 8.", 'figure id="first"',
             'section id="answer"', 'figure id="second"', 'section id="scaling"', 'id="all-runs"',
             'section id="failures"', "Left out."]  # fmt: skip
    places = [html.index(part) for part in parts]
    assert places == sorted(places)
    assert html.index("<details>") < html.index('figure id="third"') < html.index("</details>")


def test_at_most_three_sentences_come_before_the_first_chart():
    pages = [page("stalls", "one"), page("scaling", "two"), page("comparison", "three"), page("answer", "four")]
    html = html_of(pages)
    shown = [text for text in ("opening: one", "opening: two", "opening: three", "summary: four") if text in html]
    assert shown == ["opening: one", "opening: two", "opening: three"]


def test_the_best_to_several_targets_come_before_those_per_epoch():
    html = html_of([page("answer", "batch 8"), page("targets", "batch 16")])
    assert html.index("opening: batch 16") < html.index('section id="answer"') < html.index('section id="targets"')
    assert "summary: batch 8" not in html


def test_failures_are_summarized_first_if_there_is_nothing_else():
    failures, answer = page("failures", "out of memory"), page("answer", "Fastest: batch 8.")
    html = html_of([failures], [])
    assert html.index("summary: out of memory") < html.index('section id="failures"')
    assert "summary: out of memory" not in html_of([answer, failures])


def test_markup_in_names_stays_text():
    html = html_of([page("answer", EVIL)], CHARTS, "", [EVIL], [EVIL], EVIL)
    assert "alert(1)</script>" not in html
    assert unescape(html).count(EVIL) >= 8


def test_absent_parts_have_no_place():
    html = html_of([], [])
    parts = ("<figure", "All runs", 'id="vega"', 'id="notes"', 'class="summary"')
    assert [part for part in parts if part in html] == []
    assert pack("text") == pack("text"), "equal pages are equal files"
