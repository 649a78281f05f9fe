"""Templates to Markdown, HTML and the terminal."""

from io import StringIO

import pytest
from rich.console import Console

from epochmeter.report.output import render

HOSTILE = "a|b*_c_ `d` <script>alert(1)</script>\n[link](http://x)"


@pytest.fixture
def rendered(tmp_path, monkeypatch):
    """Return a function that renders the body of a macro with two arguments."""
    monkeypatch.setattr(render, "TEMPLATES", tmp_path)
    render._environment.cache_clear()

    def body(text, *values):
        (tmp_path / "x.md.j2").write_text(f"{{% macro body(a, b) %}}\n{text}\n{{% endmacro %}}", encoding="utf-8")
        return render.render_macro("x.md.j2", "body", *values, *[None] * (2 - len(values)))

    yield body
    render._environment.cache_clear()


def test_values_cannot_become_markup(rendered):
    template = "Run {{ a }} of {{ b | quantity('s') }}.\n\n| key |\n| --- |\n| {{ a }} |"
    markdown = rendered(template, HOSTILE, 3515)
    html = render.markdown_to_html(markdown)
    assert "58.6 min" in markdown
    assert html.count("<td>a|b*_c_ `d` &lt;script&gt;alert(1)&lt;/script&gt; [link](http://x)</td>") == 1
    assert "<script" not in html
    assert "<a " not in html


def test_macros_are_escaped_once_and_may_be_missing(rendered):
    inner = "{% macro inner(x) -%}\n{{ x }}\n{%- endmacro %}\n"
    assert rendered("{{ inner(a) }}{% endmacro %}\n" + inner + "{% macro last() %}", "a*b") == "a\\*b\n"
    assert render.render_macro("x.md.j2", "summary", None) == ""


def test_numbers_are_aligned_to_the_right():
    assert render.table(["a", "b"], [["x", "1"]], ["b"]).splitlines() == ["| a | b |", "| --- | ---: |", "| x | 1 |"]


def test_command_is_code_and_is_not_escaped(rendered):
    assert rendered("Run {{ a | code }}.", "train.py a_b=*") == "Run `train.py a_b=*`.\n"


def test_lines_of_a_paragraph_are_joined(rendered):
    assert rendered("one\n{% if false %}\nno\n{% endif %}\ntwo\n\n\n\n| a |\n| - |\n\n- b\n- c\n") == (
        "one two\n\n| a |\n| - |\n\n- b\n- c\n"
    )


def test_rows_of_a_long_table_are_counted(rendered):
    assert rendered("| a |\n\n{{ more_rows(a) }}", range(1250)) == "| a |\n\n1,050 more rows are in the JSON file.\n"
    assert rendered("| a |\n\n{{ more_rows(a) }}", range(200)) == "| a |\n"


def test_markdown_is_printed_as_it_is_where_it_is_no_terminal():
    markdown = "# Title\n\n" + render.table(["configuration"], [["x" * 200]]) + "\n"
    for is_terminal in (False, True):
        console = Console(file=StringIO(), force_terminal=is_terminal, width=80)
        render.print_markdown(markdown, console)
        assert (markdown in console.file.getvalue()) is not is_terminal
