"""The time series of the gauges: about one row per second, in the run folder's `gauges.csv`.

docs/metrics.md describes the columns. There are those of the gauges that the machine has; a cell is empty if it could
not be read.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.gauges import Gauge, core_ticks
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
SECTOR_BYTES, MILLISECOND = 512, 1e-3
"""Units of the kernel's disk counters."""

Row = Mapping[str, float | str | None]
"""Cells by column; None for a cell without a reading."""
Counters = Mapping[str, Sequence[int]]
"""Busy ticks and all ticks of each core, counters of the disk, bytes received and sent."""


class GaugeSeries:
    """Rows of gauges, from the readings of `gauge_sampler`.

    Args:
        period_s: Mean period of rows, in seconds.
        devices: The block devices that count the requests for the dataset.

    Attributes:
        columns: The columns of the first row.
    """

    def __init__(self, root: Path, period_s: float, devices: Sequence[str] = ()) -> None:
        self.period_s = period_s
        self.columns: tuple[str, ...] = ()
        self._stat = root / "proc/stat"
        self._disks = [root / "sys/class/block" / device / "stat" for device in devices]
        self._rows: list[Row] = []
        self._due_ns = 0
        self._before: tuple[int, Counters] | None = None
        self._slowed: dict[str, None] | None = None

    def add(
        self, at_ns: int, levels: Mapping[str, float], network: Sequence[int], slowed: Iterable[str] | None
    ) -> None:
        """Add a sample, which becomes a row if one is due; called by the sampler's thread only.

        Args:
            levels: Readings by column.
            network: Bytes received and sent; empty if they are unknown.
            slowed: Devices with lowered clocks and the causes, of all samples; None if they are unknown.
        """
        if slowed is not None:
            self._slowed = {**(self._slowed or {}), **dict.fromkeys(slowed)}
        if at_ns < self._due_ns:
            return
        period_ns = round(self.period_s / NANOSECOND)
        self._due_ns = at_ns + period_ns - (at_ns - self._due_ns) % period_ns if self._due_ns else at_ns + period_ns
        counters = self._read_counters(network)
        (before_ns, before), self._before = self._before or (at_ns, counters), (at_ns, counters)
        slowed, self._slowed = self._slowed, None
        text = {} if slowed is None else {THROTTLING_COLUMN: "; ".join(slowed).replace(",", " ") or NOT_THROTTLED}
        rates = _rates(before, counters, (at_ns - before_ns) * NANOSECOND, len(self._disks))
        row: Row = {TIME_COLUMN: at_ns, **rates, **levels, **text}
        self.columns = self.columns or tuple(row)
        self._rows.append(row)

    def _read_counters(self, network: Sequence[int]) -> Counters:
        counters: dict[str, Sequence[int]] = {}
        with suppress(OSError, ValueError):
            counters |= core_ticks(self._stat)
        with suppress(OSError, ValueError):
            counters["disk"] = disk_counters(self._disks)
        counters["network"] = network
        return {name: counts for name, counts in counters.items() if counts}

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


def disk_counters(stats: Sequence[Path]) -> list[int]:
    """Sum the counters of block devices, from their files `stat` (Documentation/block/stat.rst of Linux)."""
    return [sum(counts) for counts in zip(*(map(int, stat.read_text().split()[:11]) for stat in stats), strict=True)]


def _rates(before: Counters, now: Counters, elapsed_s: float, disks: int) -> dict[str, float | None]:
    """Return the cells of counters; those that were not read before are None."""
    cells: dict[str, float | None] = {}
    for name, counts in now.items():
        increases = [after - earlier for after, earlier in zip(counts, before.get(name, counts), strict=True)]
        seconds = elapsed_s if name in before else 0.0
        if name == "disk":
            cells |= _disk_rates(increases, seconds, disks)
        elif name == "network":
            cells["network_received_bytes_per_s"] = _quotient(increases[0], seconds)
            cells["network_sent_bytes_per_s"] = _quotient(increases[1], seconds)
        else:
            cells[f"{name}_utilization"] = _quotient(*increases)
    return cells


def _disk_rates(increases: Sequence[int], seconds: float, disks: int) -> dict[str, float | None]:
    """Return the cells of `disk_counters`, given their increases."""
    reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, _, busy_ms, queued_ms = increases
    return {
        "disk_reads_per_s": _quotient(reads, seconds),
        "disk_writes_per_s": _quotient(writes, seconds),
        "disk_read_bytes_per_s": _quotient(read_sectors * SECTOR_BYTES, seconds),
        "disk_written_bytes_per_s": _quotient(written_sectors * SECTOR_BYTES, seconds),
        "disk_read_await_s": _quotient(read_ms * MILLISECOND, reads),
        "disk_write_await_s": _quotient(write_ms * MILLISECOND, writes),
        "disk_queue_requests": _quotient(queued_ms * MILLISECOND, seconds),
        "disk_utilization": _quotient(busy_ms * MILLISECOND, seconds * disks),
    }


def _quotient(numerator: float, denominator: float) -> float | None:
    """Return numerator / denominator; None if nothing was counted in the denominator, or if a counter was reset."""
    return numerator / denominator if denominator > 0 and numerator >= 0 else None
