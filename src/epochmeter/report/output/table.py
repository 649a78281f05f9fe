"""The runs of a report as one table with one line per run: CSV, Markdown and HTML."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import escape
from io import StringIO
from itertools import chain
from typing import Any

from epochmeter.report.output.render import escape_markdown, grid_markdown
from epochmeter.report.runs.filter import flat
from epochmeter.report.runs.run import Run
from epochmeter.report.words import ABSENT, Grid

FACTS = ("number", "sweep", "state", "excluded_because", "host", "experiment", "devices", "power_limited_devices",
         "cores", "samples", "energy_source", "energy_covers", "no_energy", "link", "reused")  # fmt: skip
"""Attributes of a run with one value each; column `run.sweep`."""
LISTS = ("added", "energy_domains", "rehearsal", "read_errors")
RUN, HOST = "run.", "host."
KEYS, STORAGE = "run.typed", "run.storage"
COLUMNS = {"e2e (s)": "steady/e2e_s", "stall (s)": "steady/data_stall_s", "copy (s)": "steady/copy_s",
           "compute (s)": "steady/compute_s", "overhead (s)": "steady/overhead_s",
           "samples/s": "steady/samples_per_s", "energy (J)": "steady/energy_j", "power (W)": "steady/power_mean_w",
           "time to target (s)": "total/time_to_target_s", "energy to target (J)": "total/energy_to_target_j",
           "loss": "steady/train_loss", "accuracy": "steady/train_accuracy"}  # fmt: skip
"""Column of Markdown and HTML -> metric."""
PARTS = ("stall (s)", "copy (s)", "compute (s)", "overhead (s)")
"""Columns with the decimals of `e2e (s)`, of which they are parts."""
DIGITS, MAX_DECIMALS = 3, 6
"""Significant digits of the smallest value in a column."""
MIN_FILTERED = 11
"""Rows from which the HTML table has a filter per column, a search field and several pages."""
FORMULA = ("=", "+", "-", "@")
"""Beginnings of a text that a spreadsheet would run as a formula."""
MAX_LISTED = 5
"""Numbers of runs that a cell lists."""


def text(rows: Sequence[Run]) -> str:
    """Format everything known of runs, except their epochs, as CSV; absent values are empty.

    Keys have their names in `conf`, metrics those of docs/metrics.md.
    """
    layouts: dict[tuple[str, ...], int] = {}  # 10,000 rows share few layouts; one dict per row would be 100 MB
    lines = []
    for row in rows:
        line = _line(row)
        lines.append((layouts.setdefault(tuple(line), len(layouts)), tuple(line.values())))
    columns = sorted(dict.fromkeys(chain.from_iterable(layouts)), key=_column_order)
    places = [[layout.index(name) if name in layout else -1 for name in columns] for layout in layouts]
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(map(_scalar, columns))
    writer.writerows([values[place] if place >= 0 else "" for place in places[layout]] for layout, values in lines)
    return output.getvalue()


def grid(rows: Sequence[Run], title: str = "Runs, means of their steady epochs") -> Grid:
    """Return the keys in which runs differ and their main metrics; a metric that no run has is left out."""
    keys = varied(rows)
    metrics = {name: metric for name, metric in COLUMNS.items() if any(metric in row.metrics for row in rows)}
    decimals = {name: _decimals(row.metrics.get(metric) for row in rows) for name, metric in metrics.items()}
    decimals |= {name: decimals["e2e (s)"] for name in PARTS if name in decimals and "e2e (s)" in decimals}
    cells = []
    for row in rows:
        measured = [_fixed(row.metrics.get(metric), decimals[name]) for name, metric in metrics.items()]
        cells.append([str(row.number), *(value(row, key) for key in keys), *measured])
    return Grid(title, ["run", *keys, *metrics], cells)


def markdown(rows: Sequence[Run], title: str) -> str:
    """Format the table as a Markdown page."""
    return f"# {escape_markdown(title)}\n\n{grid_markdown(grid(rows))}"


def html(rows: Sequence[Run]) -> str:
    """Format the table as part of a page that needs no network: sortable, and with filters if it is long."""
    from itables import options, to_html_datatable
    from itables.javascript import generate_init_offline_itables_html
    from pandas import DataFrame

    shown = grid(rows)
    cells = [[_linked(row), *map(escape, line[1:])] for row, line in zip(rows, shown.rows, strict=True)]
    is_long = len(rows) >= MIN_FILTERED
    table = to_html_datatable(
        DataFrame(cells, columns=[escape(column) for column in shown.columns]),
        connected=False,
        table_id="runs",
        allow_html=True,  # for the links; all other texts are escaped
        maxBytes=0,
        showIndex=False,
        column_filters="footer" if is_long else False,
        layout={} if is_long else dict.fromkeys(("topStart", "topEnd", "bottomStart", "bottomEnd")),
        text_in_header_can_be_selected=False,  # a click on a header sorts
        display_logo_when_loading=False,
        classes="display compact",
        lengthMenu=[10, 25, 100, 1000],
        order=[],
    )
    return generate_init_offline_itables_html(options.dt_bundle) + table


def platform_differences(rows: Sequence[Run]) -> Grid | None:
    """Return in what the hosts and the software of runs differ; None if they are the same."""
    cells = []
    for kind in dict.fromkeys(name for row in rows for name in row.platform):
        runs: dict[str, list[int]] = {}
        for row in rows:
            runs.setdefault(row.platform.get(kind, ABSENT), []).append(row.number)
        if len(runs) > 1:
            cells += [[kind, version, str(len(numbers)), _some(numbers)] for version, numbers in runs.items()]
    columns = ["what", "is", "runs", "such as"]
    return Grid("What the runs ran on and with, where it differs", columns, cells) if cells else None


def varied(rows: Sequence[Run]) -> list[str]:
    """Return the keys that were overridden in some run and are not the same in all of them."""
    keys = dict.fromkeys(key for row in rows for key in row.keys)
    sweeps = ["sweep"] if len({row.sweep for row in rows}) > 1 else []
    return sweeps + [key for key in keys if len({value(row, key) for row in rows}) > 1]


def value(row: Run, key: str) -> str:
    """Return the value of a key: the override, or else the configured value."""
    text = row.sweep if key == "sweep" else row.override_or_value(key)
    return ABSENT if text is None else text


def _line(row: Run) -> dict[str, str | float]:
    """Return the columns and values of a run."""
    facts: dict[str, Any] = {f"{RUN}{name}": getattr(row, name) for name in FACTS}
    facts |= {f"{RUN}{name}": list(getattr(row, name)) or None for name in LISTS}
    facts |= {KEYS: dict(row.keys), STORAGE: dict(row.storage) or None}
    line: dict[str, str | float] = {
        name: _cell(fact) for name, fact in facts.items() if fact is not None and fact is not False
    }
    line |= {key: _cell(leaf) for key, leaf in flat(row.job).items()}
    line |= row.metrics
    line |= {f"{HOST}{name}": _scalar(entry) for name, entry in row.platform.items()}
    return line


def _column_order(column: str) -> int:
    """Sort key: attributes of the run, then keys, metrics and the host."""
    if column.startswith(RUN):
        return 0
    return 3 if column.startswith(HOST) else 2 if _is_metric(column) else 1


def _is_metric(column: str) -> bool:
    """Whether a column is a metric, such as `steady/e2e_s`; a key with a slash has a dot before it."""
    section, slash, _ = column.partition("/")
    return bool(slash) and "." not in section


def _cell(fact: Any) -> str:
    """Format a value so that JSON or the text itself gives it back."""
    return json.dumps(fact) if isinstance(fact, dict | list) else _scalar(fact)


@lru_cache(maxsize=4096, typed=True)  # the values of a configuration are mostly those of the next one
def _scalar(fact: Any) -> str:
    """Format a value; a text that is empty, or that would be read as something else, is quoted as JSON."""
    if isinstance(fact, str) and fact and fact.isprintable() and not fact.startswith(FORMULA) and not _is_json(fact):
        return fact
    return json.dumps(fact)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _linked(row: Run) -> str:
    """Return the number of a run, with a link to its page if it has one."""
    if not (row.link or "").startswith(("http://", "https://")):
        return str(row.number)
    return f'<a href="{escape(row.link or "")}" target="_blank" rel="noopener">{row.number}</a>'


def _decimals(values: Iterable[float | None]) -> int:
    """Return the decimals that give the smallest value of a column three significant digits."""
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    digits = DIGITS - 1 - math.floor(math.log10(min(sizes))) if sizes else 0
    return min(max(digits, 0), MAX_DECIMALS)


def _fixed(value: float | None, decimals: int) -> str:
    """Format a number with a number of decimals; `-` if it is absent or not finite."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"


def _some(numbers: Sequence[int]) -> str:
    return ", ".join([*map(str, numbers[:MAX_LISTED]), *(["..."] if len(numbers) > MAX_LISTED else [])])
