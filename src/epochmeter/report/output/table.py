"""The runs of a report as one table: one line per run, for spreadsheets and for the page."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from io import StringIO
from itertools import chain
from typing import Any

from epochmeter.report.output.render import escape_markdown, grid_markdown
from epochmeter.report.runs.filter import flat
from epochmeter.report.runs.run import Run
from epochmeter.report.words import ABSENT, Grid, number

FACTS = ("number", "sweep", "state", "excluded_because", "host", "experiment", "devices", "power_limited_devices",
         "cores", "samples", "energy_source", "energy_covers", "no_energy", "link", "reused")  # fmt: skip
"""What a row holds of a run by one value each: column `run.sweep`."""
LISTS = ("added", "energy_domains", "rehearsal", "read_errors")
RUN, HOST = "run.", "host."
KEYS, STORAGE = "run.typed", "run.storage"
COLUMNS = {"e2e s": "steady/e2e_s", "stall s": "steady/data_stall_s", "copy s": "steady/copy_s",
           "compute s": "steady/compute_s", "overhead s": "steady/overhead_s",
           "samples/s": "steady/samples_per_s", "energy J": "steady/energy_j", "power W": "steady/power_mean_w",
           "time to target s": "total/time_to_target_s", "energy to target J": "total/energy_to_target_j",
           "loss": "steady/train_loss", "accuracy": "steady/train_accuracy"}  # fmt: skip
"""What people read of each run, an epoch's steady mean unless it says otherwise -> the metric."""
DIGITS, MOST_DECIMALS = 3, 6
"""Significant digits of the least number in a column of the page, and what that ends at."""
NOT_A_NUMBER = r"[\"NaN\", \"___NaN___\"]"
"""What itables writes where there is no value: what is read, and what it is sorted by."""
FORMULA = ("=", "+", "-", "@")
"""What a spreadsheet takes for the begin of a formula, which would then be run."""
NAMED = 5
"""So many runs are named of those that something holds for."""


def text(rows: Sequence[Run]) -> str:
    """All that rows hold as CSV: a column a fact, key of the job and metric; what is absent is empty.

    Keys have the names that one types, metrics those of docs/metrics.md. Epochs are not in it.
    """
    layouts: dict[tuple[str, ...], int] = {}  # of 10,000 lines most have the same: a dict each would be 100 MB
    lines = []
    for row in rows:
        line = _line(row)
        lines.append((layouts.setdefault(tuple(line), len(layouts)), tuple(line.values())))
    columns = sorted(dict.fromkeys(chain.from_iterable(layouts)), key=_place)
    places = [[layout.index(name) if name in layout else -1 for name in columns] for layout in layouts]
    told = StringIO()
    writer = csv.writer(told, lineterminator="\n")
    writer.writerow(map(_scalar, columns))
    writer.writerows([values[place] if place >= 0 else "" for place in places[layout]] for layout, values in lines)
    return told.getvalue()


def grid(rows: Sequence[Run], title: str = "Runs, means of their steady epochs") -> Grid:
    """The runs as people read them: in what they differ, and what was measured; what none has is no column."""
    keys, metrics = varied(rows), _metrics(rows)
    cells = []
    for row in rows:
        measured = (number(row.metrics.get(name)) for name in metrics.values())
        cells.append([str(row.number), *(value(row, key) for key in keys), *measured])
    return Grid(title, ["run", *keys, *metrics], cells)


def markdown(rows: Sequence[Run], title: str) -> str:
    """Format the table as a Markdown page."""
    return f"# {escape_markdown(title)}\n\n{grid_markdown(grid(rows))}"


def html(rows: Sequence[Run]) -> str:
    """The table as part of a page, sortable and filterable without a network; texts in it stay texts."""
    from itables import options, to_html_datatable
    from itables.javascript import generate_init_offline_itables_html
    from pandas import DataFrame

    keys, metrics = varied(rows), _metrics(rows)
    columns: dict[str, list[Any]] = {"run": [_linked(row) for row in rows]}
    columns |= {escape(key): [_number_or_text(value(row, key)) for row in rows] for key in keys}
    columns |= {name: _rounded([row.metrics.get(metric) for row in rows]) for name, metric in metrics.items()}
    table = to_html_datatable(
        DataFrame(columns),
        connected=False,
        table_id="runs",
        allow_html=True,  # of the links; all else is escaped
        maxBytes=0,
        showIndex=False,
        column_filters="footer",
        text_in_header_can_be_selected=False,  # a click on it sorts
        display_logo_when_loading=False,
        classes="display compact",
        lengthMenu=[10, 25, 100, 1000],
        order=[],
    )
    told = table.replace(NOT_A_NUMBER, NOT_A_NUMBER.replace("NaN", ABSENT, 1))  # sorted as before, and read as absent
    return generate_init_offline_itables_html(options.dt_bundle) + told


def platform_differences(rows: Sequence[Run]) -> Grid | None:
    """In what the hosts and the software of runs differ; None where it is all the same."""
    kinds = dict.fromkeys(name for row in rows for name in row.platform)
    cells = []
    for kind in kinds:
        runs: dict[str, list[int]] = {}
        for row in rows:
            runs.setdefault(row.platform.get(kind, ABSENT), []).append(row.number)
        if len(runs) > 1:
            cells += [[kind, told, str(len(numbers)), _some(numbers)] for told, numbers in runs.items()]
    columns = ["what", "is", "runs", "such as"]
    return Grid("What the runs ran on and with, where it differs", columns, cells) if cells else None


def varied(rows: Sequence[Run]) -> list[str]:
    """The keys that were typed for any of them and are not the same in all of them."""
    keys = dict.fromkeys(key for row in rows for key in row.keys)
    sweeps = ["sweep"] if len({row.sweep for row in rows}) > 1 else []
    return sweeps + [key for key in keys if len({value(row, key) for row in rows}) > 1]


def value(row: Run, key: str) -> str:
    """What a key was for a run: as it was typed, or as it stood where it was not."""
    found = row.sweep if key == "sweep" else row.override_or_value(key)
    return ABSENT if found is None else found


def _metrics(rows: Sequence[Run]) -> dict[str, str]:
    return {name: metric for name, metric in COLUMNS.items() if any(metric in row.metrics for row in rows)}


def _line(row: Run) -> dict[str, str | float]:
    """A row as names and values."""
    told: dict[str, Any] = {f"{RUN}{name}": getattr(row, name) for name in FACTS}
    told |= {f"{RUN}{name}": list(getattr(row, name)) or None for name in LISTS}
    told |= {KEYS: dict(row.keys), STORAGE: dict(row.storage) or None}
    known = {name: fact for name, fact in told.items() if fact is not None and fact is not False}
    line: dict[str, str | float] = {name: _cell(fact) for name, fact in known.items()}
    line |= {key: _cell(leaf) for key, leaf in flat(row.job).items()}
    line |= row.metrics
    line |= {f"{HOST}{name}": _scalar(is_so) for name, is_so in row.platform.items()}
    return line


def _place(column: str) -> int:
    """Facts first, then keys, then metrics, then the host; each in the order in which they came."""
    if column.startswith(RUN):
        return 0
    return 3 if column.startswith(HOST) else 2 if _measured(column) else 1


def _measured(column: str) -> bool:
    """Whether a column is a metric's: `steady/e2e_s`; a key that holds a slash has a dot before it."""
    section, slash, _ = column.partition("/")
    return bool(slash) and "." not in section


def _cell(known: Any) -> str:
    """A value as text, of which `_told` makes the value again."""
    return json.dumps(known) if isinstance(known, dict | list) else _scalar(known)


@lru_cache(maxsize=4096, typed=True)  # a job's values are mostly those of the next job
def _scalar(known: Any) -> str:
    """A text stands as it is, unless it is empty, or something else would be made of it: then as JSON quotes it."""
    if isinstance(known, str) and known and known.isprintable() and not known.startswith(FORMULA):
        return known if _told(known) is known else json.dumps(known)
    return json.dumps(known)


def _told(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _linked(row: Run) -> str:
    """The number of a run, as a link to its page where it has one."""
    if not (row.link or "").startswith(("http://", "https://")):
        return str(row.number)
    return f'<a href="{escape(row.link or "")}" target="_blank" rel="noopener">{row.number}</a>'


def _number_or_text(text: str) -> int | float | str:
    """A number, which is sorted as one, or a text that is no markup."""
    told = _told(text)
    return told if isinstance(told, int | float) and not isinstance(told, bool) else escape(text)


def _rounded(measured: Sequence[float | None]) -> list[float | None]:
    """A column's values with the digits that say something of the least of them; whole numbers where that is none."""
    sizes = [abs(value) for value in measured if value]
    digits = DIGITS - 1 - math.floor(math.log10(min(sizes))) if sizes else 0
    if digits <= 0 and None not in measured:
        return [round(value or 0.0) for value in measured]
    return [None if value is None else round(value, min(max(digits, 0), MOST_DECIMALS)) for value in measured]


def _some(numbers: Sequence[int]) -> str:
    return ", ".join([*map(str, numbers[:NAMED]), *(["..."] if len(numbers) > NAMED else [])])
