"""Render templates to Markdown, and Markdown to HTML and to the terminal.

Every analysis has one template in `report/templates`, which gives Markdown. The page and the terminal show the same
Markdown, so that a sentence exists once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from epochmeter.report import formatting
from epochmeter.report.pages import Page, number_columns
from epochmeter.report.words import Grid

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console

TEMPLATES = Path(__file__).parent.parent / "templates"
MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])|^[-+#](?= )|(?<=^\d)[.)](?= )")
"""Characters that Markdown may read as markup: no underscore within a word, and lists only at the start."""


COMMAND = re.compile(r"(python src/\w+\.py(?: -m)?(?: [\w./+~]+=(?:\.\.\.|\S*[^\s.;,:])| '[^']*')*)")
"""A command within a sentence, without the full stop of the sentence."""
MAX_ROWS = 200
"""Rows of a table; the JSON file has all."""


class Safe(str):
    """Text that is Markdown already and is not escaped again."""

    __slots__ = ()


def render_markdown(template: str, **values: object) -> str:
    """Render a template of `report/templates` to Markdown.

    Values are escaped, so that the name of a run cannot become markup.

    Args:
        template: name of the file, for example `stalls.md.j2`.
        values: variables of the template.
    """
    lines = _markdown_environment().get_template(template).render(values).splitlines()
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def page_markdown(page: Page, *, with_summary: bool = True) -> str:
    """Render the text of an analysis, without its title."""
    return render_markdown("page.md.j2", page=page, with_summary=with_summary, max_rows=MAX_ROWS)


def grid_markdown(grid: Grid) -> str:
    """Format one table with its title."""
    return f"{escape_markdown(grid.title)}:\n\n{table(grid.columns, grid.rows, number_columns(grid))}\n"


def page_file(page: Page, title: str, banner: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Render the Markdown file of an analysis.

    Args:
        page: its text.
        title: name of the sweep.
        banner: warnings above the text.
        notes: which runs are left out, below the text.
    """
    values = {"page": page, "title": title, "banner": banner, "notes": notes, "with_summary": True}
    return render_markdown("page_file.md.j2", **values, max_rows=MAX_ROWS)


def render_html(template: str, **values: object) -> str:
    """Render a template of `report/templates` to HTML; values are escaped."""
    return _html_environment().get_template(template).render(values)


def markdown_to_html(markdown: str) -> Markup:
    """Convert Markdown to HTML; HTML within it is shown as text."""
    from markdown_it import MarkdownIt

    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown))


def print_markdown(markdown: str, console: Console) -> None:
    """Print Markdown: formatted in a terminal, and without escapes and line breaks in a file or a pipe."""
    if not console.is_terminal:
        text = re.sub(r"\\([^\w\s])", r"\1", unescape(markdown))
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    from rich.markdown import Markdown

    width = console.width
    for block in markdown.strip().split("\n\n"):
        if block.startswith("|"):
            console.width = max(width, *map(len, block.splitlines()))  # a wide table runs on, so that no number is cut
        console.print(Markdown(block), crop=False)
        console.print()
        console.width = width


def escape_markdown(value: object) -> str:
    """Escape a value so that Markdown shows it as it is, in a table too; line breaks become spaces."""
    if isinstance(value, Safe):
        return value
    text = str(value)
    padding = (" " * text[:1].isspace(), " " * (len(text) > 1 and text[-1:].isspace()))
    return Safe(MARKUP.sub(r"\\\g<0>", escape(" ".join(text.split()), quote=False)).join(padding))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> str:
    """Format a Markdown table.

    Args:
        columns: headers.
        rows: cells by column.
        numbers: headers of the columns that are aligned to the right.
    """
    rules = ["---:" if column in numbers else "---" for column in columns]
    cells = [[escape_markdown(column) for column in columns], rules]
    cells += [[escape_markdown(cell) for cell in row] for row in rows]
    return Safe("\n".join(f"| {' | '.join(row)} |" for row in cells))


def code(text: str) -> str:
    """Format a command as Markdown code."""
    fence = "``" if "`" in text else "`"
    return Safe(f"{fence}{' '.join(text.split())}{fence}")


def commands(sentence: str) -> str:
    """Format the commands within a sentence as code, and escape the rest."""
    parts = re.split(COMMAND, sentence)
    return Safe("".join(code(part) if odd % 2 else escape_markdown(part) for odd, part in enumerate(parts)))


@lru_cache(maxsize=1)
def _markdown_environment() -> Environment:
    environment = _environment()
    environment.finalize = escape_markdown
    environment.filters |= {"commands": commands, "safe": Safe}  # the latter for the result of a macro
    environment.globals |= {"number_columns": number_columns, "table": table}
    return environment


@lru_cache(maxsize=1)
def _html_environment() -> Environment:
    environment = _environment()
    environment.autoescape = True
    return environment


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "code": code,
        "interval": formatting.interval,
        "markdown": markdown_to_html,
        "number": formatting.number,
        "percent": formatting.percent,
        "plural": formatting.plural,
        "plus_minus": formatting.plus_minus,
        "quantity": formatting.quantity,
    }
    return environment
