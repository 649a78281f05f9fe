"""Templates to Markdown, HTML and the terminal."""

from io import StringIO

import pytest
from rich.console import Console

from epochmeter.report.output import render

HOSTILE = "a|b*_c_ `d` <script>alert(1)</script>\n[link](http://x)"


@pytest.fixture
def template(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "TEMPLATES", tmp_path)
    render._markdown_environment.cache_clear()
    render._html_environment.cache_clear()

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")

    yield write
    render._markdown_environment.cache_clear()
    render._html_environment.cache_clear()


def test_values_cannot_become_markup(template):
    template(
        "x.md.j2", "Run {{ name }} of {{ time_s | quantity('s') }}.\n\n{{ table(['key', 'n'], [[name, 1]], ['n']) }}"
    )
    markdown = render.render_markdown("x.md.j2", name=HOSTILE, time_s=3515)
    html = render.markdown_to_html(markdown)
    assert "58.6 min" in markdown
    assert html.count("<td>a|b*_c_ `d` &lt;script&gt;alert(1)&lt;/script&gt; [link](http://x)</td>") == 1
    assert "<script" not in html
    assert "<a " not in html


def test_numbers_are_aligned_to_the_right():
    assert render.table(["a", "b"], [["x", "1"]], ["b"]).splitlines() == ["| a | b |", "| --- | ---: |", "| x | 1 |"]


def test_command_is_code_and_is_not_escaped(template):
    template("x.md.j2", "Run {{ command | code }}.")
    assert render.render_markdown("x.md.j2", command="train.py a_b=*") == "Run `train.py a_b=*`.\n"


def test_empty_blocks_leave_no_gap(template):
    template("x.md.j2", "one\n\n{% if false %}\nno\n{% endif %}\n\n\n\ntwo\n")
    assert render.render_markdown("x.md.j2") == "one\n\ntwo\n"


def test_markdown_is_printed_as_it_is_where_it_is_no_terminal():
    markdown = "# Title\n\n" + render.table(["configuration"], [["x" * 200]]) + "\n"
    for is_terminal in (False, True):
        console = Console(file=StringIO(), force_terminal=is_terminal, width=80)
        render.print_markdown(markdown, console)
        assert (markdown in console.file.getvalue()) is not is_terminal
