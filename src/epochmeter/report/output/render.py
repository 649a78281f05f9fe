"""Render templates to Markdown, and Markdown to HTML and to the terminal.

Every analysis has one template in `report/templates`, named after its page: the macro `body(results)` gives its text,
and the macro `summary(results)`, if there is one, up to three sentences that the report starts with. The page and the
terminal show the same Markdown, so that a sentence exists once.

Lines of a paragraph may be wrapped anywhere in a template, as they are joined. Values are escaped; what a macro or
`code` returns is not escaped again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from epochmeter.config.installation import with_own_commands
from epochmeter.report import formatting
from epochmeter.report.pages import Page
from epochmeter.sweep.sweep_folder import RECOMMENDED_REPEATS

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Console

TEMPLATES = Path(__file__).parent.parent / "templates"
MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])|^[-+#](?= )|(?<=^\d)[.)](?= )")
"""Characters that Markdown may read as markup: no underscore within a word, and lists only at the start."""
FILTERS = ("interval", "join_or_more", "number", "percent", "plural", "quantity", "times", "with_bounds")
"""Functions of `formatting` that are filters of the templates."""
MAX_ROWS = 200
"""Rows of a table; the JSON file has all."""


def page_summary(page: Page) -> str:
    """Render the sentences that a report starts with; empty if the analysis has none."""
    return render_macro(f"{page.name}.md.j2", "summary", page.results)


def page_body(page: Page) -> str:
    """Render the text of an analysis, without its title and summary."""
    warnings = "".join(f"**{escape_markdown(warning)}**\n\n" for warning in page.warnings)
    return warnings + render_macro(f"{page.name}.md.j2", "body", page.results)


def page_markdown(page: Page) -> str:
    """Render the text of an analysis, without its title."""
    return f"{page_summary(page)}\n{page_body(page)}".lstrip()


def page_file(page: Page, title: str, banner: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Render the Markdown file of an analysis of a sweep: the banner, its text, and the notes."""
    warnings = [f"**{escape_markdown(warning)}**" for warning in banner]
    heading = escape_markdown(f"{page.title}: {title}")
    return "\n\n".join([f"# {heading}", *warnings, page_markdown(page).strip(), *map(escape_markdown, notes)]) + "\n"


def render_macro(template: str, name: str, *values: object) -> str:
    """Render a macro of a template to Markdown; empty if the template has none of this name."""
    macro = getattr(_environment(is_markdown=True).get_template(template).module, name, None)
    return _join_lines(macro(*values)) if macro else ""


def render_notes(name: str, *values: object) -> list[str]:
    """Render a macro of `notes.md.j2` to plain texts, one per paragraph."""
    return [plain_text(note).strip() for note in render_macro("notes.md.j2", name, *values).split("\n\n") if note]


def plain_text(markdown: str) -> str:
    """Return Markdown without escapes."""
    return re.sub(r"\\([^\w\s]|_)", r"\1", unescape(markdown))


def render_html(template: str, **values: object) -> str:
    """Render a template of `report/templates` to HTML; values are escaped."""
    return _environment(is_markdown=False).get_template(template).render(values)


def markdown_to_html(markdown: str) -> Markup:
    """Convert Markdown to HTML; HTML within it is shown as text."""
    from markdown_it import MarkdownIt

    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown))


def print_markdown(markdown: str, console: Console) -> None:
    """Print Markdown: formatted in a terminal, and without escapes and line breaks in a file or a pipe."""
    if not console.is_terminal:
        console.print(plain_text(markdown), markup=False, highlight=False, soft_wrap=True)
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
    if isinstance(value, Markup):
        return value
    text = str(value)
    padding = (" " * text[:1].isspace(), " " * (len(text) > 1 and text[-1:].isspace()))
    return Markup(MARKUP.sub(r"\\\g<0>", escape(" ".join(text.split()), quote=False)).join(padding))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> str:
    """Format a Markdown table; the columns of numbers are aligned to the right."""
    rules = ["---:" if column in numbers else "---" for column in columns]
    cells = [[escape_markdown(column) for column in columns], rules]
    cells += [[escape_markdown(cell) for cell in row] for row in rows]
    return Markup("\n".join(f"| {' | '.join(row)} |" for row in cells))


def more_rows(rows: Sequence[object], shown: int = MAX_ROWS) -> str:
    """Return how many rows a table leaves out; empty if none. To be used after the blank line below the table."""
    return f"{len(rows) - shown:,} more rows are in the JSON file." if len(rows) > shown else ""


def code(text: str) -> str:
    """Format a command as Markdown code."""
    text = with_own_commands(text)
    fence = "``" if "`" in text else "`"
    return Markup(f"{fence}{' '.join(text.split())}{fence}")


def _join_lines(markdown: str) -> str:
    """Return Markdown with one line per paragraph; the lines of tables and lists stay."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", str(markdown).strip()):
        lines = [" ".join(line.split()) for line in paragraph.splitlines()]
        separator = "\n" if paragraph.startswith(("|", "- ")) else " "
        paragraphs.append(separator.join(filter(None, lines)) + "\n")
    return "\n".join(paragraphs).lstrip("\n")


@lru_cache(maxsize=2)
def _environment(*, is_markdown: bool) -> Environment:
    """Return the environment of the templates of Markdown, or of HTML.

    With `autoescape`, macros return `Markup`. In Markdown, `finalize` escapes all else, and `autoescape` nothing.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=escape_markdown if is_markdown else None,
    )
    environment.filters |= {"code": code, "markdown": markdown_to_html}
    environment.filters |= {name: getattr(formatting, name) for name in FILTERS}
    environment.globals |= {"max_rows": MAX_ROWS, "more_rows": more_rows, "recommended_repeats": RECOMMENDED_REPEATS}
    return environment
