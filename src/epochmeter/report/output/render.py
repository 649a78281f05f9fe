"""Render templates to Markdown, and Markdown to HTML and to the terminal.

Every analysis has one template in `report/templates`, which gives Markdown. The page and the terminal show the same
Markdown, so that a sentence exists once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from epochmeter.report import formatting

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console

TEMPLATES = Path(__file__).parent.parent / "templates"
MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that Markdown may read as markup; an underscore within a word is none."""


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


def render_html(template: str, **values: object) -> str:
    """Render a template of `report/templates` to HTML; values are escaped."""
    return _html_environment().get_template(template).render(values)


def markdown_to_html(markdown: str) -> Markup:
    """Convert Markdown to HTML; HTML within it is shown as text."""
    from markdown_it import MarkdownIt

    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown))


def print_markdown(markdown: str, console: Console) -> None:
    """Print Markdown: formatted in a terminal, as it is in a file or a pipe."""
    if not console.is_terminal:
        console.print(markdown, markup=False, highlight=False, soft_wrap=True)
        return
    from rich.markdown import Markdown

    console.print(Markdown(markdown))


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


@lru_cache(maxsize=1)
def _markdown_environment() -> Environment:
    environment = _environment()
    environment.finalize = escape_markdown
    environment.filters["safe"] = Safe  # for the result of a macro
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
        "change": formatting.change,
        "code": code,
        "interval": formatting.interval,
        "markdown": markdown_to_html,
        "number": formatting.number,
        "percent": formatting.percent,
        "plural": formatting.plural,
        "plus_minus": formatting.plus_minus,
        "quantity": formatting.quantity,
    }
    environment.globals["table"] = table
    return environment
