"""The HTML page as a file: it contains everything, fetches nothing, and shows names as text."""

import base64
import gzip
import json
import re
from html import unescape

import pytest

from epochmeter.report.charts.chart import Chart
from epochmeter.report.output.html import pack, report_html
from epochmeter.report.pages import Page, Section
from epochmeter.report.words import Grid

pytest.importorskip("altair")
EVIL = "<script>alert(1)</script> & $x_1$"
CHARTS = [
    Chart(name, f"Title of {name}", EVIL, {"datasets": {"x": [EVIL]}}, name == "third")
    for name in ("first", "second", "third")
]


def page(name="scaling", title="Scaling", sentences=("One.", "Two."), grids=(), summary=()):
    return Page(name, title, [Section(sentences, grids)], {}, [], summary)


def unpacked(html, name):
    (letters,) = re.findall(rf'id="{name}">([^<]*)<', html)
    return gzip.decompress(base64.b64decode(letters)).decode()


def test_everything_is_in_the_file():
    html = report_html("a sweep", [page()], CHARTS, "<p>the table</p>", ["Left out: 1 of 9 runs: not completed."])
    packed = json.loads(unpacked(html, "specs"))
    assert packed["specs"] == {chart.name: chart.spec for chart in CHARTS}
    assert packed["themes"].keys() == {"light", "dark"}
    assert "vegaEmbed" in unpacked(html, "vega")
    assert unpacked(html, "runs-packed") == "<p>the table</p>"
    assert "Left out: 1 of 9 runs: not completed." in html
    assert not re.findall(r'(?:src|href)="(?!#)', html), "nothing is fetched"
    assert "default-src 'none'" in html


def test_order_is_summary_first_chart_answer_charts_analyses_table():
    pages = [page("differences", "Hosts"), page("scaling"), page("answer", "The answer", summary=["Fastest: batch 8."])]
    html = report_html("a sweep", pages, CHARTS, "<p>the table</p>", ["Left out."], ["REHEARSAL"])
    parts = ['role="alert"', "Fastest: batch 8.", 'figure id="first"', 'section id="answer"', 'figure id="second"',
             'section id="scaling"', 'id="all-runs"', 'section id="differences"', "Left out."]  # fmt: skip
    places = [html.index(part) for part in parts]
    assert places == sorted(places)
    assert html.count("Fastest: batch 8.") == 1
    assert html.index("<details>") < html.index('figure id="third"') < html.index("</details>")


def test_markup_in_names_stays_text():
    grid = Grid(EVIL, [EVIL], [[EVIL]])
    html = report_html(EVIL, [page("answer", EVIL, [EVIL], [grid], [EVIL])], CHARTS, "", [EVIL], [EVIL])
    assert "alert(1)</script>" not in html
    assert unescape(html).count(EVIL) >= 8


def test_absent_parts_have_no_place():
    html = report_html("a sweep", [], [], "")
    for part in ("<figure", "All runs", 'id="vega"', 'id="notes"', 'class="summary"'):
        assert part not in html


@pytest.mark.parametrize(
    ("sentence", "command"),
    [
        ("Try: python src/train.py -m batch=8,16 lr=0.1.", "python src/train.py -m batch=8,16 lr=0.1"),
        ("Run: python src/train.py -m model=...", "python src/train.py -m model=..."),
        ("Run python src/train.py first.", "python src/train.py"),
        ("python src/report.py 'where={model: lenet}' a=<b>; then", "src/report.py 'where={model: lenet}' a=<b>"),
    ],
)  # fmt: skip
def test_commands_are_code(sentence, command):
    assert f"{command}</code>" in unescape(report_html("a sweep", [page(sentences=[sentence])], [], ""))


def test_numbers_are_aligned_to_the_right_and_a_long_table_is_cut():
    rows = [[f"batch {n}", "1.5 (1 to 2)", "4f83762"] for n in range(250)]
    html = report_html("a sweep", [page(grids=[Grid("", ["job", "s", "commit"], rows)])], [], "")
    assert html.count('<td style="text-align:right">1.5 (1 to 2)</td>') == 200
    assert html.count("<td>4f83762</td>") == 200
    assert "50 more rows are in scaling.json" in html


def test_equal_pages_are_equal_files():
    assert pack("text") == pack("text")
