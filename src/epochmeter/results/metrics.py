"""Find metrics by name, with titles, units and rules of aggregation, in the rows of `metric_table.py`."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from epochmeter.results.metric_table import TABLE, Metric, Place
from epochmeter.shared.record import GAUGES, POWER

OF_EPOCHS = re.compile("^(steady|std|process)/")
"""Sections of aggregated epochs, and of a process that ran already; their metrics have the names in `epoch/`."""
SECTIONS = {POWER: "power", GAUGES: "system"}
"""File of a time series -> section of the metrics that describe its columns; also in MLflow."""
ANY = "([^/]+)"
VARYING = {"<N>": r"(\d+(?:_\d+)?)"}
"""Varying part of a name -> its pattern, unless it is `ANY`. Devices of the same name are numbered: `gpu0_2`."""
UNITS = {
    "bytes_per_s": "B/s", "per_s": "1/s", "fraction": "0..1", "utilization": "0..1",
    "s": "s", "j": "J", "w": "W", "bytes": "B", "g": "g", "hz": "Hz", "c": "C",
}  # fmt: skip
"""End of a name -> unit."""


def _titled(row: Metric) -> Metric:
    """Return a row with its titles; by default they are the words of its name, without the unit."""
    words = row.name.rpartition("/")[2]
    ending = next((ending for ending in UNITS if words.endswith(f"_{ending}")), "")
    title = row.title or words.removesuffix(f"_{ending}").replace("_", " ")
    return row._replace(title=title, short=row.short or title)


def _pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of the names of a row in which parts vary; its groups are these parts."""
    literals = re.split(r"(<\w+>)", name)
    return re.compile("".join(VARYING.get(word, ANY) if word[:1] == "<" else re.escape(word) for word in literals))


def _with_parts(row: Metric, name: str, parts: Sequence[str]) -> Metric:
    """Return a row under one of its names, with the varying parts in its titles."""
    titles = [row.title, row.short]
    for placeholder, word in zip(re.findall(r"<\w+>", row.name), parts, strict=False):  # none of a row without parts
        titles = [title.replace(placeholder, word.replace("_", " ")) for title in titles]
    return row._replace(name=name, title=titles[0], short=titles[1])


def _of_each_window(row: Metric) -> Iterator[Metric]:
    """Yield a row under its name in each kind of window."""
    metric = _titled(row)
    yield metric
    for name in row.names[1:]:
        yield metric._replace(name=name, title=metric.short, shown=(), openmetrics="")


METRICS = {metric.name: metric for row in TABLE for metric in _of_each_window(row)}
"""All metrics by name, without `steady/` and `std/`."""
COMPOSED = {_pattern(name): row for name, row in METRICS.items() if "<" in name}
"""Pattern of the names in which a part varies -> row."""
CORE = _pattern("cpu<N>_utilization")
"""Pattern of the columns of single cores. A machine may have hundreds: places that show gauges show these together."""
EPOCH = {name.removeprefix("epoch/"): row for name, row in METRICS.items() if row.section == "epoch"}
"""Metrics of an epoch by short name."""
PERCENTILES = {name: int(row.steps.removeprefix("p")) / 100 for name, row in EPOCH.items() if row.steps.startswith("p")}
"""Short name of a percentile of the steps -> fraction of the steps."""


@lru_cache(maxsize=4096)
def find(name: str) -> Metric:
    """Return the row of a metric under its full name, such as `steady/energy_cpu0_j`.

    A metric that the table does not have, such as one of another version, has the title and the unit in its name.
    """
    row, parts = _row_of(name)
    if row:
        return _with_parts(row, name, parts)
    unit = next((unit for ending, unit in UNITS.items() if name.endswith(f"_{ending}")), "1")
    titled = _titled(Metric(name, unit, ""))
    if titled.section in ("", "epoch", "steady", "std", *SECTIONS.values()) or "/" not in name:
        return titled
    title = f"{titled.section} {titled.title}"  # else `steady/f1` and `val/f1` would have the same
    return titled._replace(title=title, short=title)


def _row_of(name: str) -> tuple[Metric | None, Sequence[str]]:
    """Return the row of a name and the varying parts of the name; None if the table does not have it."""
    listed = name if name in METRICS else OF_EPOCHS.sub("epoch/", name)
    if listed in METRICS:
        return METRICS[listed], ()
    matches = ((row, pattern.fullmatch(listed)) for pattern, row in COMPOSED.items())
    return next(((row, match.groups()) for row, match in matches if match), (None, ()))


@lru_cache(maxsize=4096)
def order_of(name: str) -> int:
    """Return the place of a metric in the table; after all rows if it is not there."""
    row, _ = _row_of(name)
    return [*METRICS.values()].index(row) if row else len(METRICS)


def is_known(name: str) -> bool:
    """Return whether the table has a metric of this name."""
    return bool(find(name).meaning)


def is_quality(name: str) -> bool:
    """Return whether a metric is of the model at the end of an epoch, such as a loss: it has no mean over epochs."""
    aggregation = find(name).epochs
    return aggregation == "last" or (name.startswith("val/") and not aggregation)


def is_unlisted(name: str) -> bool:
    """Return whether a metric is shown as a user's own: one that the table does not have, without its `std/`."""
    return not is_known(name) and not name.startswith("std/")


def shown_in(place: Place, of_epochs: str = "epoch") -> list[str]:
    """Return the metrics that a place shows; those of epochs in the section `of_epochs`, such as `steady`."""
    return [row.name_in(of_epochs) for row in METRICS.values() if place in row.shown]
