"""The runs of a report as one table with one line per run: CSV, Markdown and HTML."""

import csv
import json
from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from markupsafe import Markup

from epochmeter.report.formatting import metric_column
from epochmeter.report.render import escape_markdown, one_line, phrase, render_html
from epochmeter.report.runs.costs import TIME
from epochmeter.report.runs.frames import column_order, run_columns
from epochmeter.report.runs.run import Run
from epochmeter.results.metrics import find, is_unlisted, shown_in
from epochmeter.results.quantities import ABSENT, number

PARTS = ("steady/data_stall_s", "steady/copy_s", "steady/compute_s", "steady/overhead_s")
"""Parts of the time per epoch, shown with as many decimals as the time."""
PERCENT = 100.0
OF_EVALUATION = {"steady/train_loss": "val/loss", "steady/train_accuracy": "val/accuracy"}
"""Training metric -> metric of the last evaluation, which replaces it if all runs with the former have it."""
MIN_FILTERED = 11  # rows from which the HTML table has a filter per column, a search field and several pages
FORMULA = ("=", "+", "-", "@")  # beginnings of a text that a spreadsheet would run as a formula


class Cells(NamedTuple):
    """A table: titles of its columns, its cells by row, and the titles of the columns with numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str]


def write_csv(runs: Sequence[Run], file: TextIO) -> None:
    """Write everything known of runs, except their epochs, as CSV; absent values are empty."""
    rows = [run_columns(run) for run in runs]
    names = sorted(dict.fromkeys(chain.from_iterable(rows)), key=column_order)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, names))
    for row in rows:
        values = (row.get(name, "") for name in names)
        writer.writerow([value if type(value) in (float, int) else _cell(value) for value in values])


def columns_and_rows(runs: Sequence[Run]) -> Cells:
    """Return the keys in which runs differ and their main metrics; a metric that no run has is left out."""
    keys = varied(runs)
    currencies = {
        str(footprint["currency"]) for run in runs if (footprint := run.job.get("footprint") or {}).get("currency")
    }
    unlisted = sorted(filter(is_unlisted, set().union(*(run.metrics for run in runs))))
    listed = [name for name in shown_in("report", "steady") if len(currencies) == 1 or find(name).unit != "currency"]
    shown = [*listed, *unlisted]
    with_metric = {name: {run for run in runs if name in run.metrics} for name in shown}
    metrics = [name for name in shown if with_metric[name] - with_metric.get(OF_EVALUATION.get(name, ""), set())]
    titles = [metric_column(name, "".join(currencies)) for name in metrics]
    columns = {name: [_in_its_unit(name, run) for run in runs] for name in metrics}
    # The third digit of the smallest number is the last one in its column.
    smallest = {name: min((abs(value) for value in column if value), default=0.0) for name, column in columns.items()}
    references = {name: (name in PARTS and smallest.get(TIME)) or smallest[name] for name in metrics}
    numbers = [[Markup(number(value, references[name])) for value in column] for name, column in columns.items()]
    rows = [
        [str(run.number), *(value_of(run, key) for key in keys), *(column[place] for column in numbers)]
        for place, run in enumerate(runs)
    ]
    return Cells(["run", *keys, *titles], rows, ["run", *titles])


def _in_its_unit(name: str, run: Run) -> float | None:
    """Return the value of a metric in the unit of its column: a fraction in percent."""
    value = run.metrics.get(name)
    return value if value is None or find(name).unit != "0..1" else PERCENT * value


def markdown(cells: Cells, *, is_plain: bool = False) -> str:
    """Format the table as Markdown, or as plain text."""
    to_text = one_line if is_plain else escape_markdown
    rules = ["---:" if column in cells.numbers else "---" for column in cells.columns]
    lines = [map(to_text, cells.columns), rules, *(map(to_text, row) for row in cells.rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{phrase('runs')}\n\n{text}\n"


def html(runs: Sequence[Run], cells: Cells) -> str:
    """Format the table as part of a page that needs no network: sortable, and with filters if it is long."""
    # The scripts are those of itables; its functions would import pandas, which takes as long as a short report.
    heads = "".join(f"<th>{escape(column)}</th>" for column in cells.columns)
    is_long = len(runs) >= MIN_FILTERED
    data = [[str(Markup.escape(cell)) for cell in row] for row in cells.rows]
    for run, row in zip(runs, data, strict=True):
        if run.address:
            row[0] = f'<a href="{escape(run.address)}" target="_blank" rel="noopener">{run.number}</a>'
    options = {
        "classes": ["display", "compact"],
        "data_json": json.dumps(data),
        "layout": {} if is_long else dict.fromkeys(("topStart", "topEnd", "bottomStart", "bottomEnd")),
        "lengthMenu": [10, 25, 100, 1000],
        "order": [],
        "table_html": f"<table><thead><tr>{heads}</tr></thead>{f'<tfoot>{heads}</tfoot>' if is_long else ''}</table>",
        **({"column_filters": "footer"} if is_long else {}),
    }
    bundle = Path(str(distribution("itables").locate_file("itables/html/dt_bundle.js")))
    css = bundle.with_suffix(".css").read_text(encoding="utf-8")
    return render_html("runs.html.j2", css=css, bundle=b64encode(bundle.read_bytes()).decode(), options=options)


def varied(runs: Sequence[Run]) -> list[str]:
    """Return the keys that were overridden in some run and are not the same in all of them."""
    keys = dict.fromkeys(key for run in runs for key in run.keys)
    sweeps = ["sweep"] if len({run.sweep for run in runs}) > 1 else []
    return sweeps + [key for key in keys if len({value_of(run, key) for run in runs}) > 1]


def value_of(run: Run, key: str) -> str:
    """Return the value of a key: the override, or else the configured value."""
    text = run.sweep if key == "sweep" else run.keys.get(key, run.value(key))
    return ABSENT if text is None else text


@lru_cache(maxsize=4096, typed=True)  # the values of a configuration are mostly those of the next one
def _cell(value: Any) -> str:
    """Format a value; a text that a spreadsheet would run, or with line breaks, is quoted as JSON."""
    is_plain = isinstance(value, str) and value.isprintable() and not value.startswith(FORMULA)
    return value if is_plain else json.dumps(value)
