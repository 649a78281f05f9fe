"""The gauges of a run in the live view, as the table of metrics describes them."""

from collections.abc import Iterator
from typing import NamedTuple

from epochmeter.results.metric_table import Metric
from epochmeter.results.metrics import CORE, SECTIONS, find, is_known, order_of
from epochmeter.results.quantities import quantity
from epochmeter.shared.record import GAUGES, POWER
from epochmeter.watch.appended import Series
from epochmeter.watch.snapshot import RunView


class Gauge(NamedTuple):
    """A column of `power.csv` or `gauges.csv`; `device` is what it is about, such as `gpu0` or `disk`."""

    column: str
    metric: Metric
    device: str
    series: Series

    @property
    def is_core(self) -> bool:
        return bool(CORE.fullmatch(self.column))

    @property
    def is_known(self) -> bool:
        return is_known(self.metric.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The device, and what is measured of it if several quantities of it have a chart together: `disk`, `read`."""
        short = self.metric.short
        return (self.device,) if short == self.device else (self.device, short)

    @property
    def text(self) -> str:
        """The present value, for a line of the device: `98 %`, `7.40 MB/s read`."""
        value = quantity(self.series.latest, self.metric.symbol, decimals=self.metric.decimals)
        return " ".join([value, *self.names[1:]])


def gauges_of(view: RunView) -> list[Gauge]:
    """Return the gauges in the order of the table; those that it does not have are the last."""
    columns = [
        (find(f"{SECTIONS[file]}/{column}"), column, series)
        for file, by_column in ((POWER, view.power), (GAUGES, view.gauges))
        for column, series in by_column.items()
    ]
    columns.sort(key=lambda gauge: order_of(gauge[0].name))
    return [Gauge(column, metric, _device(column, metric), series) for metric, column, series in columns]


def panels_of(view: RunView) -> Iterator[dict[str, object]]:
    """Yield the charts of the page: gauges with the same title and unit share one."""
    charts: dict[tuple[str, str], list[Gauge]] = {}
    for gauge in gauges_of(view):
        charts.setdefault((gauge.metric.title, gauge.metric.unit), []).append(gauge)
    for (title, unit), gauges in charts.items():
        yield {
            "title": title[:1].upper() + title[1:],
            "unit": gauges[0].metric.symbol,
            "decimals": gauges[0].metric.decimals,
            "columns": [(gauge.column, gauge.metric.short) for gauge in gauges],
            "is_fraction": unit == "0..1",
            "from_zero": unit != "C",
            "is_of_cores": gauges[0].is_core,
        }


def _device(column: str, metric: Metric) -> str:
    """Return the title of one gauge in its chart if it names the device; else the device is the column's first word."""
    return metric.short if column.startswith(metric.short.replace(" ", "_")) else column.partition("_")[0]
