"""Markdown of texts that may hold anything: a table stays a table, and a name that looks like markup stays a name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

MARKS = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
"""What Markdown may take for markup; within a word an underscore is none."""


def plain(text: str) -> str:
    """A text in one line that is shown as it is, in a table's cell too: markup is escaped, its lines end in `<br>`."""
    lines = (" ".join(line.split()) for line in text.strip().splitlines())
    return "<br>".join(MARKS.sub(r"\\\g<0>", escape(line, quote=False)) for line in lines)


def piped(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, given the texts of its cells."""
    told = [list(map(plain, columns)), ["---"] * len(columns), *(list(map(plain, row)) for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in told]
