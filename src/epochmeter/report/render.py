"""Render templates to Markdown, and Markdown to HTML and to the terminal.

Each analysis has a template with the macros `body(results)` and, for the start of the report, `summary` or `opening`.
Lines of a paragraph are joined. Values are escaped, except in plain text, for files and pipes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from html import escape
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from markupsafe import Markup

from epochmeter.config.installation import code_cache, with_own_commands
from epochmeter.console.plain import wrap
from epochmeter.report import formatting
from epochmeter.report.runs.run import grouped
from epochmeter.report.statistics import MAX_REPEATS, MIN_EFFECT
from epochmeter.results.metrics import find
from epochmeter.results.next_steps import gain_sentence, recorded_gain
from epochmeter.results.quantities import ABSENT, NO_BREAK, quantity, unbroken, within
from epochmeter.results.run_info import DISTURBED
from epochmeter.results.stragglers import straggler_sentence
from epochmeter.results.sweep_files import repeats_override

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.bccache import Bucket
    from markdown_it import MarkdownIt
    from rich.console import Console, ConsoleOptions
    from rich.markdown import Markdown
    from rich.segment import Segment

TEMPLATES = Path(__file__).parent / "templates"
HEADING = "{% set heading = "
"""In the template of each page, unlike those with parts of pages."""
NOT_OF_SWEEPS = ("card", "trace", "trace_changes", "validation")  # pages of one run or two, and of a machine
MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])|^[-+#](?= )|(?<=^\d)[.)](?= )")
"""Characters that Markdown may read as markup: no underscore within a word, and lists only at the start."""
CODE = re.compile(r"(`[^`|<&\\]+`)")  # code between backticks in a message; it is not escaped
FILTERS = (
    "as_sentence", "beside", "interval", "join_or_more", "number", "of_total", "percent", "plural", "ratio", "times",
)  # fmt: skip
"""Functions of `formatting` that are filters of the templates."""
QUANTITIES = ("beside", "interval", "percent", "quantity", "ratio", "times", "within")  # those of numbers with units
JOINT = "\ue000"  # of two words on one line, for rich, which breaks lines at every kind of space
MAX_CACHED = 100  # compiled templates that are kept, the latest: those of some versions
MAX_ROWS = 200  # rows of a table; the JSON file has all


@dataclass(frozen=True)
class Page:
    """One analysis, by the name of its template and its files: scaling.md.j2, scaling.json, scaling.md."""

    name: str
    results: Any
    warning: str = ""
    """Shown above the text, such as the number of disturbed runs."""

    @property
    def title(self) -> str:
        """The heading in its template."""
        return str(self._variables["heading"])

    @property
    def rest_title(self) -> str:
        """The heading of its text below a summary that is elsewhere."""
        return str(self._variables.get("rest_heading", self.title))

    @property
    def _variables(self) -> Mapping[str, Any]:
        """Those set in its template."""
        return vars(_environment(one_line).get_template(f"{self.name}.md.j2").module)

    @property
    def values(self) -> Any:
        """All numbers of `results`, which is one dataclass or a list of them, for the JSON file."""
        return list(map(_values, self.results)) if isinstance(self.results, list) else _values(self.results)


def sweep_pages() -> list[str]:
    """Return the names of the pages of a sweep: each is a template with a heading, and a module of `analyses`."""
    templates = (path for path in sorted(TEMPLATES.glob("*.md.j2")) if HEADING in path.read_text(encoding="utf-8"))
    names = (path.name.removesuffix(".md.j2") for path in templates)
    return [name for name in names if name not in NOT_OF_SWEEPS]


def phrase(name: str, **values: object) -> str:
    """Return a text of `phrases.j2` with its values."""
    return _phrases()[name].format(**values)


def page_part(page: Page, macro: str, *, is_plain: bool = False) -> str:
    """Render the `opening`, `summary` or `body` of an analysis; empty if it has none."""
    return render_macro(f"{page.name}.md.j2", macro, page.results, is_plain=is_plain)


def page_markdown(page: Page, *, is_plain: bool = False) -> str:
    """Render the text of an analysis below its warning, without its title."""
    warning = warning_markdown(page, is_plain=is_plain)
    return "\n".join(filter(None, [warning and f"{warning}\n", page_text(page, is_plain=is_plain)]))


def warning_markdown(page: Page, *, is_plain: bool = False) -> str:
    """Render the warning of an analysis; empty without one."""
    return f"**{one_line(page.warning) if is_plain else escape_markdown(page.warning)}**" if page.warning else ""


def page_text(page: Page, *, is_plain: bool = False) -> str:
    """Render the text of an analysis."""
    parts = (page_part(page, macro, is_plain=is_plain) for macro in ("summary", "body"))
    return "\n".join(filter(None, parts))


def page_file(page: Page, title: str, banner: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Render the Markdown file of an analysis of a sweep: the banner, its text, and the notes."""
    text = page_markdown(page).strip().replace(NO_BREAK, " ")
    return markdown_file(f"{page.title}: {title}", [text], banner, notes)


def markdown_file(heading: str, texts: Sequence[str], banner: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """Return a Markdown file: a heading, the banner, texts in Markdown, and the notes."""
    warnings = [f"**{escape_markdown(warning)}**" for warning in banner]
    return "\n\n".join([f"# {escape_markdown(heading)}", *warnings, *texts, *map(escape_markdown, notes)]) + "\n"


def render_macro(template: str, name: str, *values: object, is_plain: bool = False) -> str:
    """Render a macro of a template to Markdown, or to plain text; empty if the template has none of this name."""
    environment = _environment(one_line if is_plain else escape_markdown)
    macro = getattr(environment.get_template(template).module, name, None)
    return _join_lines(macro(*values)) if macro else ""


def render_notes(name: str, *values: object) -> list[str]:
    """Render a macro of `notes.md.j2` to plain texts, one per paragraph."""
    notes = render_macro("notes.md.j2", name, *values, is_plain=True)
    return [note.strip() for note in notes.split("\n\n") if note]


def render_html(template: str, **values: object) -> str:
    """Render a template of `report/templates` to HTML; values are escaped."""
    return _environment(None).get_template(template).render(values)


def markdown_to_html(markdown: str) -> Markup:
    """Convert Markdown to HTML; HTML within it is shown as text. No line breaks between a number and its unit."""
    return Markup(_markdown_parser().render(markdown))


@cache  # imported late, as it takes a while
def _markdown_parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("text", lambda _, tokens, place, *__: escape(unbroken(tokens[place].content), quote=False))
    return parser


def print_markdown(markdown: str, console: "Console") -> None:
    """Print Markdown in a terminal, and a plain text without line breaks in a file or a pipe."""
    if not console.is_terminal:
        console.print(markdown, markup=False, highlight=False, soft_wrap=True)
        return
    console.print(_terminal_markdown()(markdown), crop=False)
    console.print()


@cache  # imported late, as it takes a while
def _terminal_markdown() -> "type[Markdown]":
    """Return the class of Markdown for a terminal. No line divides a quantity; a table that is too wide is stacked."""
    from rich.markdown import Markdown, TableElement
    from rich.text import Text

    class Unbroken(Markdown):
        def __init__(self, markup: str) -> None:
            super().__init__(markup)
            for token in chain.from_iterable(token.children or () for token in self.parsed):
                if token.type == "text":
                    token.content = unbroken(token.content).replace(NO_BREAK, JOINT)

        def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Segment]":
            for segment in cast("Iterator[Segment]", super().__rich_console__(console, options)):
                yield segment._replace(text=segment.text.replace(JOINT, " "))

    class Table(TableElement):
        def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Segment]":
            table: Any
            (table,) = super().__rich_console__(console, options)
            cells = [[str(cell) for cell in (column.header, *column.cells)] for column in table.columns]
            edges = 2 * len(cells)
            widths = column_widths(cells, options.max_width - edges)
            if sum(widths) + edges > options.max_width:
                lines = "\n".join(stacked(cells, options.max_width))
                yield from console.render(Text(lines, no_wrap=True, overflow="ignore"), options)
                return
            for column, width in zip(table.columns, widths, strict=True):
                column.width = width
            yield from console.render(table, options.update(width=sum(widths) + edges))

    return type("TerminalMarkdown", (Unbroken,), {"elements": {**Markdown.elements, "table_open": Table}})


def column_widths(columns: Sequence[Sequence[str]], most: int) -> list[int]:
    """Return the widths of columns: in total at most a number of characters, unless that would divide a word.

    The widest columns are narrowed first. A number and its unit are one word, as is a relative error.
    """
    words = [[cell.split(" ") for cell in column] for column in columns]
    least = [max((len(word) for cell in column for word in cell), default=0) for column in words]
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) > most and widths != least:
        _, widest = max((width, place) for place, width in enumerate(widths) if width > least[place])
        widths[widest] -= 1
    return widths


def stacked(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the rows of a table as paragraphs, in which each cell follows the title of its column, its first cell."""
    titles, *rows = zip(*columns, strict=True)
    lines = []
    for first, *others in rows:
        cells = [
            f"{title}{NO_BREAK}{cell}"
            for title, cell in zip(titles[1:], others, strict=True)
            if cell not in ("", ABSENT)
        ]
        lines += [f"{titles[0]} {first}", *(f"  {line}" for line in wrap(", ".join(cells), width - 2))]
    return lines


def one_line(value: object, to_markup: Callable[[str], str] = str) -> str:
    """Return a value as text in one line; spaces at its ends are kept."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    padding = (" " * text[:1].isspace(), " " * (len(text) > 1 and text[-1:].isspace()))
    return Markup(to_markup(" ".join(text.split())).join(padding))


def escape_markdown(value: object) -> str:
    """Escape a value so that Markdown shows it as it is, in a table too; line breaks become spaces."""
    return one_line(value, _escaped)


def by_frequency(items: Iterable[object], attribute: str) -> list[tuple[str, list[object]]]:
    """Group items by an attribute, the largest group first."""
    return sorted(grouped(items, attrgetter(attribute)).items(), key=lambda group: -len(group[1]))


def code(text: str) -> str:
    """Format a command as Markdown code."""
    text = with_own_commands(text)
    fence = "``" if "`" in text else "`"
    return Markup(f"{fence}{' '.join(text.split())}{fence}")


def _values(result: Any) -> Any:
    return result.values if hasattr(result, "values") else asdict(result)


@cache
def _phrases() -> Mapping[str, str]:
    module: Any = _environment(one_line).get_template("phrases.j2").module
    return dict(module.phrases)


@lru_cache(maxsize=1024)  # many cells of a table are equal
def _escaped(text: str) -> str:
    parts = CODE.split(text)
    parts[::2] = (MARKUP.sub(r"\\\g<0>", escape(plain, quote=False)) for plain in parts[::2])
    return "".join(parts)


def _join_lines(markdown: str) -> str:
    """Return Markdown with one line per paragraph; the lines of tables and lists stay."""
    lines = (" ".join(filter(None, line.split(" "))) for line in str(markdown).splitlines())
    paragraphs = [list(group) for is_text, group in groupby(lines, bool) if is_text]
    separators = ["\n" if paragraph[0].startswith(("|", "- ")) else " " for paragraph in paragraphs]
    return "\n".join(f"{joint.join(lines)}\n" for joint, lines in zip(separators, paragraphs, strict=True))


def _unbroken(format_value: Callable[..., str]) -> Callable[..., Markup]:
    """Return a filter of numbers that stay on one line with their units and errors; a line may break before bounds."""

    def in_one_line(*values: Any, **options: Any) -> Markup:
        text = escape_markdown(format_value(*values, **options)).replace(" ", NO_BREAK)
        for word in ("(", "to"):
            text = text.replace(NO_BREAK + word, f" {word}")
        return Markup(text)

    return in_one_line


@lru_cache(maxsize=3)
def _environment(to_text: Callable[[object], str] | None) -> "Environment":
    """Return the environment of templates whose values become text by a function; None: HTML."""
    from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined

    class Compiled(FileSystemBytecodeCache):
        """Cache of compiled templates: compiling takes half a second of a short report. A full disk is ignored."""

        def load_bytecode(self, bucket: "Bucket") -> None:
            with suppress(OSError):
                super().load_bytecode(bucket)

        def dump_bytecode(self, bucket: "Bucket") -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)
                files = sorted(Path(self.directory).iterdir(), key=lambda file: file.stat().st_mtime)
                for file in files[:-MAX_CACHED]:
                    file.unlink(missing_ok=True)

    folder = code_cache()
    cache = Compiled(str(folder), f"%s.{to_text.__name__ if to_text else 'html'}") if folder else None
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=to_text,
        bytecode_cache=cache,
    )
    environment.filters |= {
        "code": code,
        "markdown": markdown_to_html,
        "gain": lambda step: gain_sentence(recorded_gain(step)),
        "quantity": quantity,
        "repeats_override": repeats_override,
        "straggler": straggler_sentence,
        "within": within,
        "unbroken": lambda text: type(text)(unbroken(text)),  # which is Markup, or is not
        "text": lambda text: markdown_to_html(str(escape_markdown(text))),  # text between backticks is code
        "by_frequency": by_frequency,
    }
    environment.filters |= {name: getattr(formatting, name) for name in FILTERS}
    if to_text is escape_markdown:
        environment.filters |= {name: _unbroken(environment.filters[name]) for name in QUANTITIES}
    environment.globals |= {
        "max_rows": MAX_ROWS,
        "recommended_repeats": repeats_override(),
        "disturbances": DISTURBED,
        "max_repeats": MAX_REPEATS,
        "min_effect": MIN_EFFECT,
        "metric": find,
    }
    module: Any = environment.get_template("macros.md.j2").module
    environment.globals |= {"adjusted": module.adjusted, "table": module.table, "why_not": module.why_not}
    return environment
