"""Shared parts of the benchmarks: tables in Markdown, and the options `--short` and `--write`.

`make bench` prints all tables. `make bench ARGS=--short` takes a few samples of each: it shows that they work.
`make bench ARGS=--write` also writes each table to a file beside its program, such as accuracy/energy.md.
"""

from __future__ import annotations

import io
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from epochmeter.config.installation import ROOT
from epochmeter.machine import host

OPTIONS = ("--short", "--write")
SHORT = "--short" in sys.argv[1:]
WRITE = "--write" in sys.argv[1:] and not SHORT
ARGUMENTS = [argument for argument in sys.argv[1:] if argument not in OPTIONS]
"""The command line without `OPTIONS`."""

Size = TypeVar("Size")


def sized(full: Size, short: Size) -> Size:
    """Return how much to measure: `short` under `--short`, whose numbers are not worth keeping."""
    return short if SHORT else full


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table under its title and the date, commit and machine that it was measured on.

    With `--write`, also write it to the Markdown file beside the program. The title is the same in each run, so that
    a newer table replaces an older one.
    """
    table, conditions = _in_markdown(columns, rows), ", ".join(_conditions())
    print(f"\n**{title}** ({conditions})\n\n{table}", flush=True)
    if WRITE:
        write_table(Path(sys.argv[0]).with_suffix(".md"), title, conditions, table)


def write_table(file: Path, title: str, conditions: str, table: str) -> None:
    """Write a table to its section of a file, in place of an earlier table. A missing file or section is created.

    A section has a heading, a line of conditions, any text that defines the columns, the table, and any remarks. The
    definitions remain: they have no numbers of a run. Remarks are removed, as they are about the earlier numbers.

    Args:
        title: Heading of the section.
        conditions: Date, commit and machine, in one line.
        table: Table in Markdown.
    """
    text = file.read_text() if file.exists() else f"# Results of {file.parent.name}/{file.stem}.py\n\n"
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    titles = [section.partition("\n")[0].removeprefix("## ") for section in sections]
    place = titles.index(title) if title in titles else len(titles)
    earlier = re.match(r".*\n\n.*\n\n((?:[^|\n].*\n|\n)*)\|", "".join(sections[place : place + 1]))
    definitions = earlier[1] if earlier else ""
    sections[place : place + 1] = [f"## {title}\n\n{conditions}\n\n{definitions}{table}\n"]
    file.write_text(head + "\n".join(section.rstrip("\n") + "\n" for section in sections))


def _in_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    table = Table(*columns, box=MARKDOWN)
    for row in rows:
        table.add_row(*row)
    # Rows are not wrapped, since Markdown has no wrapped cells.
    console = Console(file=io.StringIO(), width=400, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().strip().splitlines())


def _conditions() -> Iterable[str]:
    if SHORT:
        yield "SHORT RUN"
    yield date.today().isoformat()
    if commit := _git("rev-parse", "--short=7", "HEAD"):
        # Files of results may differ: `--write` changes them before the next program starts.
        changes = _git("status", "--porcelain", "--untracked-files=no", "--", ":!*.md")
        yield f"commit {commit}{' with changes' if changes else ''}"
    if ARGUMENTS:
        yield f"arguments {' '.join(ARGUMENTS)}"
    described = host.describe()["cpu"]
    yield f"{described['cores']} cores ({described.get('model', 'model unknown')})"
    yield f"Python {platform.python_version()}"
    yield f"torch {version('torch').partition('+')[0]}"


def _git(*arguments: str) -> str:
    """Return the output of git; empty if the project is not a checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
