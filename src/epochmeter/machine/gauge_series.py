"""The time series of the gauges: about one row per second, in the run folder's `gauges.csv`.

docs/metrics.md describes the columns; a cell is empty if it could not be read.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.gauges import Gauge
from epochmeter.shared.record import NOT_THROTTLED, THROTTLING_COLUMN
from epochmeter.shared.units import NANOSECOND

TIME_COLUMN = "monotonic_ns"
LEVEL_COLUMNS = {
    "ram_peak_bytes": "ram_used_bytes",
    "gpu_utilization": "{}_utilization",
    "gpu_clock_mean_hz": "{}_clock_hz",
    "gpu_memory_bytes": "{}_memory_used_bytes",
    "temperature_max_c": "{}_temperature_c",
}
"""Quantity of a gauge -> its column, with the gauge's device."""
SECTOR_BYTES, MILLISECOND = 512, 1e-3  # units of the kernel's disk counters
SECONDS = -1  # index of the elapsed seconds, which follow the increases of the counters
BUSY_MS = 9  # index of the time in which a disk was busy
RATES: dict[str, dict[str, tuple[int, float, int]]] = {
    "disk": {
        "disk_reads_per_s": (0, 1, SECONDS),
        "disk_writes_per_s": (4, 1, SECONDS),
        "disk_read_bytes_per_s": (2, SECTOR_BYTES, SECONDS),
        "disk_written_bytes_per_s": (6, SECTOR_BYTES, SECONDS),
        "disk_read_await_s": (3, MILLISECOND, 0),
        "disk_write_await_s": (7, MILLISECOND, 4),
        "disk_queue_requests": (10, MILLISECOND, SECONDS),
        "disk_utilization": (BUSY_MS, MILLISECOND, SECONDS),
    },
    "network": {"network_received_bytes_per_s": (0, 1, SECONDS), "network_sent_bytes_per_s": (1, 1, SECONDS)},
}
"""Counters -> their columns: index of the counter, its unit, and index of the divisor."""

Row = Mapping[str, float | str | None]  # cells by column; None for a cell without a reading
Counters = Mapping[str, Sequence[float]]  # of each core, the disk and the network


class GaugeSeries:
    """Rows of gauges, about one per `period_s`; `devices` are the disks of the dataset."""

    def __init__(self, root: Path, period_s: float, devices: Sequence[str] = ()) -> None:
        self.period_s = period_s
        self.columns: tuple[str, ...] = ()  # of the first row
        self._disks = [root / "sys/class/block" / device / "stat" for device in devices]
        self._rows: list[Row] = []
        self._number: int | None = None  # of the period with the last row
        self._before: tuple[int, Counters] = (0, {})
        self._slowed: dict[str, None] | None = None

    def add(self, at_ns: int, levels: Mapping[str, float], counters: Counters, slowed: Iterable[str] | None) -> None:
        """Add a sample, which becomes a row if it is the first of a period; called by the sampler's thread only.

        `levels` are by column, `counters` of the cores and the network. `slowed` are the devices with lowered clocks
        and the causes; None if they are unknown.
        """
        if slowed is not None:
            self._slowed = {**(self._slowed or {}), **dict.fromkeys(slowed)}
        number, self._number = self._number, at_ns // round(self.period_s / NANOSECOND)
        if number == self._number:
            return
        (before_ns, before), now = self._before, {**counters, **self._disk_counters()}
        row: dict[str, float | str | None] = {TIME_COLUMN: at_ns, **levels}
        row |= _rates(before, now, (at_ns - before_ns) * NANOSECOND)
        if self._slowed is not None:
            row[THROTTLING_COLUMN] = "; ".join(self._slowed).replace(",", " ") or NOT_THROTTLED
        self._before, self._slowed = (at_ns, now), None
        self.columns = self.columns or tuple(row)
        self._rows.append(row)

    def _disk_counters(self) -> Counters:
        """Return the sums of the disks' counters (Documentation/block/stat.rst of Linux), and their mean busy time."""
        with suppress(OSError, ValueError):
            columns = zip(*(map(int, disk.read_text().split()[:11]) for disk in self._disks), strict=True)
            if sums := [float(sum(column)) for column in columns]:
                sums[BUSY_MS] /= len(self._disks)
                return {"disk": sums}
        return {}

    def drain(self) -> list[Row]:
        """Return the new rows, each once."""
        rows = self._rows[:]
        del self._rows[: len(rows)]  # the sampler's thread may have added more
        return rows


def level_columns(gauges: Sequence[Gauge]) -> list[str]:
    """Return the column of each gauge; empty for counters and throttling. Devices of the same name are numbered."""
    seen: Counter[tuple[str, str]] = Counter()
    columns = []
    for gauge in gauges:
        seen[gauge.quantity, gauge.device] += 1
        number = seen[gauge.quantity, gauge.device]
        device = gauge.device if number == 1 else f"{gauge.device}_{number}"
        columns.append(LEVEL_COLUMNS.get(gauge.quantity, "").format(device))
    return columns


def _rates(before: Counters, now: Counters, elapsed_s: float) -> dict[str, float | None]:
    """Return the cells of counters; None if they were not read before, or were reset, or nothing was counted."""
    cells: dict[str, float | None] = {}
    for name, counts in now.items():
        increases = [after - earlier for after, earlier in zip(counts, before.get(name, counts), strict=True)]
        increases.append(elapsed_s if name in before else 0)
        for column, (counter, unit, divisor) in RATES.get(name, {f"{name}_utilization": (0, 1, 1)}).items():
            is_rate = increases[divisor] > 0 and increases[counter] >= 0
            cells[column] = unit * increases[counter] / increases[divisor] if is_rate else None
    return cells
