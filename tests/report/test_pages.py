"""A page says the same in the terminal and in Markdown: its first interval by its name, and its texts as they are."""

import io

from rich.console import Console

from epochmeter.report.pages import Page, Section, markdown, show
from epochmeter.report.words import Grid

EVERY = ["Fastest: 10.0 s (9.0 to 11.0).", "Least energy: 5.0 J (-1.5 to 6.0).", "Plain (1 to 2 runs)."]


def page(*sections):
    return Page("answer", "The answer", [Section(sentences) for sentences in sections], None, [])


def printed(told):
    paper = io.StringIO()
    show(told, Console(file=paper, width=200))
    return paper.getvalue()


def test_the_first_interval_of_a_page_is_called_what_it_is_and_the_others_are_not():
    told = page(["Of (1 to 2 runs) nothing."], EVERY)
    for text in (printed(told), markdown(told, "sweep")):
        assert text.count("95 %") == 1
        assert "Fastest: 10.0 s (95 % interval: 9.0 to 11.0)." in text
        assert "5.0 J (-1.5 to 6.0)." in text


def test_a_page_without_an_interval_is_told_as_it_is():
    assert page(["One run."]).told == page(["One run."]).sections


def test_texts_are_no_markup_in_markdown_and_what_is_to_be_typed_is_code():
    told = Page("answer", "The *answer*", [Section(["a|b: python src/train.py -m batch=1,2. Then [c](d).", "<b>"],
                                                   [Grid("x_1 | y", ["a|b"], [["c|d"]])])], None, [])  # fmt: skip
    assert markdown(told, "_s_", ["**"], ["~~"]).splitlines() == [
        r"# The \*answer\*: \_s\_",
        "",
        r"**\*\***",
        "",
        r"**a\|b: `python src/train.py -m batch=1,2`. Then \[c\](d).**",
        "",
        "&lt;b&gt;",
        "",
        r"x_1 \| y:",
        "",
        r"| a\|b |",
        "| --- |",
        r"| c\|d |",
        "",
        r"\~\~",
    ]
