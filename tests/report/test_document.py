"""The page as a file: all of it is within, nothing is fetched, and what is not ours is text."""

import base64
import gzip
import json
import re
from html import unescape

import pytest
from pictures import EVERY, EVIL

from epochmeter.report.document import commands, html, packed, table
from epochmeter.report.pages import Page, Section
from epochmeter.report.words import Grid

pytest.importorskip("jinja2")
pytest.importorskip("plotly")


def page(name="scaling", title="Scaling", sentences=("One.", "Two."), grids=()):
    return Page(name, title, [Section(sentences, grids)], {}, [])


def unpacked(whole, name):
    (letters,) = re.findall(rf'id="{name}">([^<]*)<', whole)
    return gzip.decompress(base64.b64decode(letters)).decode()


def test_all_of_it_is_in_the_file():
    whole = html("a sweep", [page()], EVERY, "<p>the table</p>", ["Left out: 1 of 9 runs: not completed."])
    assert sorted(json.loads(unpacked(whole, "pictures"))) == sorted(chart.name for chart in EVERY)
    assert "plotly.js v" in unpacked(whole, "plotly")
    assert unpacked(whole, "runs-packed") == "<p>the table</p>"
    assert "Left out: 1 of 9 runs: not completed." in whole
    assert not re.findall(r'(?:src|href)="(?!#)', whole), "nothing is fetched"
    assert "default-src 'none'" in whole


def test_it_reads_from_the_answer_down_to_the_hosts():
    pages = [page("differences", "Hosts"), page("scaling"), page("answer", "The answer")]
    whole = html("a sweep", pages, EVERY[:1], "<p>the table</p>")
    places = [whole.index(f'id="{name}"') for name in ("answer", EVERY[0].name, "scaling", "all-runs", "differences")]
    assert places == sorted(places)
    assert whole.index('href="#answer"') < whole.index('href="#all-runs"') < whole.index('href="#differences"')


def test_markup_stays_text_everywhere():
    grid = Grid(EVIL, [EVIL], [[EVIL]])
    whole = html(EVIL, [page("scaling", EVIL, [EVIL], [grid])], EVERY, "", [EVIL], [EVIL])
    assert "alert(1)</script>" not in whole
    assert unescape(whole).count(EVIL) >= 8, "it is told all the same"


def test_what_there_is_none_of_has_no_place():
    whole = html("a sweep", [], [], "")
    assert "<figure" not in whole
    assert "All runs" not in whole
    assert 'id="plotly"' not in whole


def test_what_must_be_known_first_stands_first():
    whole = html("a sweep", [page()], [], "", ["Left out."], ["REHEARSAL"])
    assert whole.index("REHEARSAL") < whole.index("Left out.") < whole.index("One.")
    assert 'role="alert"' in whole


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        (
            "Try: python src/train.py -m batch=8,16 optimizer.lr=0.1.",
            "python src/train.py -m batch=8,16 optimizer.lr=0.1",
        ),
        (
            "Run: python src/train.py -m experiment=stalls model=...",
            "python src/train.py -m experiment=stalls model=...",
        ),
        ("Run python src/train.py first.", "python src/train.py"),
        (
            "python src/report.py 'where={model: lenet}' a=<b>; then",
            "python src/report.py 'where={model: lenet}' a=<b>",
        ),
    ],
)
def test_what_is_to_be_typed_is_told_apart(said, typed):
    assert f"<code>{typed}</code>" in unescape(commands(said))


def test_numbers_stand_right_and_names_left():
    told = table(
        Grid("", ["job", "commit", "s", "runs"], [["batch 8", "4f83762", "1.5 (1 to 2)", "0, 3"], ["b", "-", "-", "4"]])
    )
    assert told.numbers == [False, False, True, True]


def test_a_long_table_is_cut_and_says_where_the_rest_is():
    whole = html("a sweep", [page(grids=[Grid("", ["n"], [[str(n)] for n in range(250)])])], [], "")
    assert "50 more rows are in scaling.md" in whole
    assert ">199<" in whole
    assert ">200<" not in whole


def test_the_same_page_is_the_same_file():
    assert packed("text") == packed("text")
