"""Shared parts of the benchmarks: tables in Markdown, as docs/results.md has them, and `--short`.

`make bench` prints all tables. `make bench ARGS=--short` takes a few samples of each: it shows that they work.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import version
from typing import TypeVar

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from epochmeter.config.installation import ROOT
from epochmeter.machine import host

SHORT = "--short" in sys.argv[1:]
ARGUMENTS = [argument for argument in sys.argv[1:] if argument != "--short"]  # the command line without `--short`

Size = TypeVar("Size")


def sized(full: Size, short: Size) -> Size:
    """Return how much to measure: `short` under `--short`, whose numbers are not worth keeping."""
    return short if SHORT else full


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table under its title and the date, commit and machine that it was measured on."""
    table = Table(*columns, box=MARKDOWN)
    for row in rows:
        table.add_row(*row)
    print(f"\n**{title}** ({', '.join(_conditions())})\n", flush=True)
    # Rows are not wrapped, since Markdown has no wrapped cells.
    Console(width=400, highlight=False, markup=False).print(table)


def _conditions() -> Iterable[str]:
    if SHORT:
        yield "SHORT RUN"
    yield date.today().isoformat()
    if commit := _git("rev-parse", "--short=7", "HEAD"):
        yield f"commit {commit}{' with changes' if _git('status', '--porcelain', '--untracked-files=no') else ''}"
    described = host.describe()["cpu"]
    yield f"{described['cores']} cores ({described.get('model', 'model unknown')})"
    yield f"Python {platform.python_version()}"
    yield f"torch {version('torch').partition('+')[0]}"


def _git(*arguments: str) -> str:
    """Return the output of git; empty if the project is not a checkout."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()
