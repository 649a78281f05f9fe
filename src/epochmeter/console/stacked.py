"""Tables for terminals that are too narrow for them: each row is a paragraph of its cells with their titles."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from epochmeter.console.tables import PERCENT_ROW, ResultTable
from epochmeter.results.metrics import find
from epochmeter.results.quantities import ABSENT, NO_BREAK

INDENT = "  "


def stack(table: ResultTable, width: int) -> list[str]:
    """Return the rows of a table as lines of at most `width` characters, unless a single cell is wider.

    Each row is a line with its first cell, then lines with the titles and values of the others. Empty cells, absent
    values and the row of percentages, which have another unit, are left out.
    """
    columns = [[Text.from_markup(str(cell)).plain for cell in column.cells] for column in table.columns]
    rows = [row for row in zip(*columns, strict=True) if row[0] != PERCENT_ROW]
    return [line for row in rows for line in _paragraph(table, row, width)]


def _paragraph(table: ResultTable, cells: Sequence[str], width: int) -> Iterator[str]:
    first, *others = table.names
    yield f"{first} {cells[0]}" if cells[0][:1].isdigit() else cells[0]
    count = len(table.names)
    texts = [f"{name} {cell}" for name, cell in zip(others, cells[1:count], strict=True) if cell]
    for metric, value in zip(map(find, table.metrics), cells[count:], strict=True):
        if value not in ("", ABSENT):
            texts.append(f"{metric.short} {value} {metric.symbol}".rstrip())
    joined = ", ".join(text.replace(" ", NO_BREAK) for text in texts)
    for line in textwrap.wrap(joined, max(1, width - len(INDENT)), break_long_words=False, break_on_hyphens=False):
        yield INDENT + line.replace(NO_BREAK, " ")
