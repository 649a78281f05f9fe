"""Templates to Markdown, HTML and the terminal."""

import shutil
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from epochmeter.report import render
from epochmeter.report.output import table
from epochmeter.report.statistics import Estimate
from epochmeter.results.quantities import NO_BREAK

HOSTILE = "a|b*_c_ `d` <script>alert(1)</script>\n[link](http://x)"


@pytest.fixture
def rendered(tmp_path, monkeypatch):
    """Return a function that renders the body of a macro with a value."""
    shutil.copy(render.TEMPLATES / "macros.md.j2", tmp_path)
    monkeypatch.setattr(render, "TEMPLATES", tmp_path)
    render._environment.cache_clear()

    def body(text, value=None):
        (tmp_path / "x.md.j2").write_text(f"{{% macro body(a) %}}\n{text}\n{{% endmacro %}}", encoding="utf-8")
        return render.render_macro("x.md.j2", "body", value)

    yield body
    render._environment.cache_clear()


def test_values_cannot_become_markup(rendered):
    html = render.markdown_to_html(rendered("Run {{ a }}.\n\n| key |\n| --- |\n| {{ a }} |", HOSTILE))
    assert html.count("<td>a|b*_c_ <code>d</code> &lt;script&gt;alert(1)&lt;/script&gt; [link](http://x)</td>") == 1
    assert "<script" not in html
    assert "<a " not in html


INNER = "{{ inner(a) }}{% endmacro %}\n{% macro inner(x) -%}\n{{ x }}\n{%- endmacro %}\n{% macro last() %}"
TABLE = "{% call(n) table(a, 'n | twice:', 2) %}\n{{ n }} |\n{{ 2 * n }}\n{% endcall %}"


def test_templates_are_rendered_as_markdown(rendered):
    for template, value, text in (
        (INNER, "a*b", "a\\*b\n"),  # escaped once
        ("{{ a | code }}: {{ 3515 | quantity('s') }}.", "train.py a_b=*", "`train.py a_b=*`: 58.6\u00a0min.\n"),
        ("{{ a | interval('s') }}", Estimate(90.0, 88.0, 92.0), "90.0\u00a0s\u00a0±\u00a02.2\u00a0%\n"),
        ("one\n{% if false %}\nno\n{% endif %}\ntwo\n\n\n\n| a |\n| - |\n\n- b\n- c\n", None,
         "one two\n\n| a |\n| - |\n\n- b\n- c\n"),
        (TABLE, range(1250),
         "| n | twice |\n| --- | ---: |\n| 0 | 0 |\n| 1 | 2 |\n\n1,248 more rows are in the JSON file.\n"),
        (TABLE, range(1), "| n | twice |\n| --- | ---: |\n| 0 | 0 |\n"),
    ):  # fmt: skip
        assert rendered(template, value) == text
        assert render.render_macro("x.md.j2", "summary", None) == "", "a macro may be missing"


def test_markdown_is_printed_as_it_is_where_it_is_no_terminal():
    markdown = "# Title\n\n" + table.markdown(table.Cells(["configuration"], [["x" * 200]], []))
    for is_terminal in (False, True):
        console = Console(file=StringIO(), force_terminal=is_terminal, width=80)
        render.print_markdown(markdown, console)
        assert (markdown in console.file.getvalue()) is not is_terminal


def test_words_of_a_table_are_wrapped_in_a_narrow_terminal_but_never_divided():
    rows = [["batch 64, compile true", "0.937 s", "time; energy; trade-off; energy within the slowdown" * 2]]
    text = table.markdown(table.Cells(["configuration", "time", "best by"], rows, []))
    for width, longest in ((60, 60), (10, 49)):
        console = Console(file=StringIO(), force_terminal=True, width=width, no_color=True)
        render.print_markdown(text, console)
        lines = Text.from_ansi(console.file.getvalue()).plain.splitlines()
        words = {*" ".join(lines).replace(",", "").split()}
        assert (max(map(len, lines)) <= longest, words >= {*" ".join(rows[0]).replace(",", "").split()}) == (True, True)


def test_a_table_that_is_too_wide_has_its_rows_as_paragraphs():
    columns = [["run", "0", "1"], ["time (s)", "0.974", "1.012"], ["energy (J)", "-", "48.5"], ["state", "", "failed"]]
    assert render.stacked(columns, 21) == [
        "run 0", "  time (s) 0.974", "run 1", "  time (s) 1.012,", "  energy (J) 48.5,", "  state failed",
    ]  # fmt: skip


@pytest.mark.parametrize(("most", "widths"), [(30, [13, 7]), (20, [13, 7]), (12, [7, 5]), (3, [7, 4])])
def test_widest_columns_are_narrowed_to_their_longest_word_or_number_with_its_unit(most, widths):
    time = "1.5_s ±_2.0_%".replace("_", NO_BREAK)
    assert render.column_widths([["time", time], ["bbbb cc", "d"]], most) == widths


def test_templates_are_rendered_without_a_cache(rendered, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for cache in ("file", "folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        render._environment.cache_clear()
        assert rendered(f"{cache} {{{{ a }}}}", "a_b*") == f"{cache} a_b\\*\n"
    assert [*(tmp_path / "folder" / "epochmeter/code").glob("*.escape_markdown")]


@pytest.mark.parametrize("part", ["", "epochmeter", "epochmeter/code"])
def test_compiled_template_is_not_run_if_another_user_may_have_written_it(rendered, monkeypatch, tmp_path, part):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache := tmp_path / "cache"))
    render._environment.cache_clear()
    rendered("good {{ a }}", "")
    environment = render._environment(render.escape_markdown)
    template = environment.loader.get_source(environment, "x.md.j2")[0]
    bucket = environment.bytecode_cache.get_bucket(environment, "x.md.j2", str(tmp_path / "x.md.j2"), template)
    bucket.code = compile("raise SystemExit('planted code was run')", "x", "exec")
    environment.bytecode_cache.set_bucket(bucket)
    render._environment.cache_clear()
    with pytest.raises(SystemExit, match="planted"):
        rendered("good {{ a }}", "")
    (cache / part).chmod(0o770)
    render._environment.cache_clear()
    assert rendered("good {{ a }}", "b") == "good b\n"


def test_cache_of_templates_belongs_to_its_user_and_keeps_the_latest(rendered, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(render, "MAX_CACHED", 5)
    for number in range(9):
        render._environment.cache_clear()
        (tmp_path / f"{number}.md.j2").write_text("{% macro body(a) %}{% endmacro %}")
        render.render_macro(f"{number}.md.j2", "body", None)
    folder = tmp_path / "cache/epochmeter/code"
    assert (folder.stat().st_mode & 0o777, len([*folder.iterdir()])) == (0o700, 5)


def test_html_and_terminal_keep_numbers_with_their_units_but_no_command():
    text = f"{'word ' * 5}41 % and `sleep 5 s`."
    html = str(render.markdown_to_html(text))
    assert (f"41{NO_BREAK}%" in html, "<code>sleep 5 s</code>" in html) == (True, True)
    console = Console(file=StringIO(), force_terminal=True, width=28, no_color=True)
    render.print_markdown(text, console)
    assert any(line.startswith("41 %") for line in console.file.getvalue().splitlines())
