"""The page of a report: one file that needs no network, with its pictures, its tables and its words."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from epochmeter.report import interactive
from epochmeter.report.figures import Chart
from epochmeter.report.pages import COMMAND, Page
from epochmeter.report.words import Grid

MOST_ROWS = 200
"""Rows of a table in words; all are in its Markdown file."""
NUMBER = re.compile(r"-?\d[\d.,]*( .*)?")
ABOVE = ("answer", "comparison")
"""Pages that stand above the pictures."""
LAST = ("differences",)
"""Pages that stand below the table of runs."""


class Table(NamedTuple):
    """A grid as the page shows it."""

    grid: Grid
    numbers: Sequence[bool]
    """Whether a column holds numbers."""
    rows: Sequence[Sequence[str]]
    left: int
    """How many rows are not shown."""


def html(
    title: str,
    pages: Sequence[Page],
    charts: Sequence[Chart],
    table_html: str,
    notes: Sequence[str] = (),
    banner: Sequence[str] = (),
) -> str:
    """The whole page: what was found in words, the pictures, the other pages, the table of runs.

    `table_html` is trusted as it is, and all else is escaped. `notes` say what was left out, and `banner` what a
    reader must know before anything else.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    rooms = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rooms.filters |= {"table": table, "commands": commands}
    between = [page for page in pages if page.name not in (*ABOVE, *LAST)]
    return rooms.get_template("document.html").render(
        title=title,
        banner=banner,
        notes=notes,
        above=[page for page in pages if page.name in ABOVE],
        charts=charts,
        kinds={chart.name: type(chart).__name__.lower() for chart in charts},
        between=between,
        last=[page for page in pages if page.name in LAST],
        table=packed(table_html) if table_html else "",
        plotly=packed(interactive.script()) if charts else "",
        pictures=packed(_object({chart.name: interactive.drawn(chart) for chart in charts})),
    )


def commands(sentence: str) -> str:
    """A sentence, escaped, with what is to be typed told apart from what is to be read."""
    from markupsafe import Markup, escape

    said = re.split(COMMAND, sentence)
    parts = [Markup("<code>{}</code>").format(part) if odd % 2 else escape(part) for odd, part in enumerate(said)]
    return Markup().join(parts)


def packed(text: str) -> str:
    """A text for a page to unpack: compressed, and in letters that mean nothing in HTML."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def table(grid: Grid) -> Table:
    """A grid's first rows, and how its columns are set."""
    numbers = [any(NUMBER.fullmatch(row[index]) for row in grid.rows) for index in range(len(grid.columns))]
    return Table(grid, numbers, grid.rows[:MOST_ROWS], max(0, len(grid.rows) - MOST_ROWS))


def _object(values: Mapping[str, str]) -> str:
    """JSON of what is JSON already."""
    return f"{{{','.join(f'{json.dumps(name)}:{value}' for name, value in values.items())}}}"
