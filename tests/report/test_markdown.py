"""Texts as Markdown shows them: as they are, whatever they look like."""

import pytest

from epochmeter.report.markdown import piped, plain


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("5.3 (4.9 to 5.7)", "5.3 (4.9 to 5.7)"),
        ("a | b", r"a \| b"),
        (r"a \| b", r"a \\\| b"),
        ("a\nb\r\nc", "a<br>b<br>c"),
        (" two  spaces\tand a tab ", "two spaces and a tab"),
        ("<script>&", "&lt;script&gt;&amp;"),
        ("[a](javascript:b)", r"\[a\](javascript:b)"),
        ("2*3*4 `x` ~y~", r"2\*3\*4 \`x\` \~y\~"),
        ("data_stall_s", "data_stall_s"),
        ("__init__ _x_ a _", r"\_\_init\_\_ \_x\_ a \_"),
        ("", ""),
    ],
)
def test_a_text_is_shown_as_it_is_and_in_one_line(text, written):
    assert plain(text) == written


def test_a_cell_that_holds_borders_and_line_breaks_is_one_cell():
    assert piped(["run", "a|b"], [["0", "x|y\nz"], ["1", "-"]]) == [
        r"| run | a\|b |",
        "| --- | --- |",
        r"| 0 | x\|y<br>z |",
        "| 1 | - |",
    ]
