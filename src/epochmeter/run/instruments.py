"""The instruments and the data source that are read at the borders of windows, idle power, and cooling down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.schema import Job
from epochmeter.console.console import Terminal
from epochmeter.machine.disk import ReadCounters, describe, disk_of, read_counters
from epochmeter.machine.gauge_sampler import Gauges
from epochmeter.machine.gauge_series import GaugeSeries
from epochmeter.machine.gpu_counters import NO_COUNTERS, GpuCounters, counter_ids, open_counters
from epochmeter.machine.gpu_processes import NO_GPUS, GpuProcessMonitor
from epochmeter.machine.page_cache import Residency, drop_caches, prepare_cache, residency_warning
from epochmeter.power.meter import Meter, open_meter
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.window_energy import Reading, measure_idle, take_reading
from epochmeter.results.run_result import RunResult
from epochmeter.run.plan import Plan
from epochmeter.shared.record import Record

TEMPERATURE_KEY = "temperature_max_c"
TEMPERATURE_PERIOD_S = 1.0
BUSY_FRACTION = 0.1
"""Mean GPU load at idle, as a fraction, at which another process is assumed to use it; a desktop may cause less."""
RECENT_NS = 10_000_000
"""Largest age of the last window's gauges with which the next window begins; CPU time has a resolution of 10 ms."""


Notify = Callable[[str], object]
NO_DATA = "the files that the script reads are not known: `measure.data=` names them"


class DataSource:
    """Samples in memory, so that no storage is involved, or unknown; `metadata` is its description in the record."""

    devices: tuple[str, ...] = ()  # block devices that count its reads

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.metadata = metadata

    def prepare(self, epoch: int) -> list[str]:
        """Bring the page cache into the configured state before an epoch, and return notes on it."""
        return []

    def mark(self) -> None:
        """Read the disk's counters, just outside of a window."""

    def window(self, name: str, seconds: float) -> dict[str, float]:
        """Return the metrics of the window between the last two marks: `epoch` or `val`, and its duration."""
        return {}


class FileSource(DataSource):
    """The files of a dataset, on a disk and partly in the page cache."""

    def __init__(self, folder: Path, job: Job, say: Notify) -> None:
        self._folder, self._job, self._say = folder, job, say
        self._disk, self._residency = disk_of(folder), Residency(folder)
        self.devices = self._disk.devices
        self._before: float | None = None
        self._readings: list[ReadCounters | None] = []
        super().__init__(describe(self._disk))

    def prepare(self, epoch: int) -> list[str]:
        if self._job.cache == "warm" and epoch == 0:
            self._say(f"Reading {self._folder} into the page cache.")
        state = prepare_cache(self._job.cache, self._folder, epoch)
        self._before = self._residency.fraction()
        if self._job.drop_caches and state == "cold":
            drop_caches()  # last, because measuring the residency loads inodes
        notes = residency_warning(state, self._before, self._disk.medium)
        if epoch == 0 and self._before is None:
            notes.append(f"page-cache residency is unknown: {self._residency.reason}")
        if epoch == 0 and self._disk.reason:
            notes.append(f"disk reads are not counted: {self._disk.reason}")
        return notes

    def mark(self) -> None:
        self._readings = [*self._readings[-1:], read_counters(self._disk)]

    def window(self, name: str, seconds: float) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if read := read_between(*self._readings):
            metrics = {"read_bytes": read.bytes, "read_iops": read.count / seconds}
            metrics["read_bytes_per_s"] = read.bytes / seconds
        if name != "epoch":
            return {key: value for key, value in metrics.items() if key == "read_bytes"}
        before, after = self._before, self._residency.fraction()
        fractions = {"page_cache_residency_before": before, "page_cache_residency_after": after}
        return metrics | {key: fraction for key, fraction in fractions.items() if fraction is not None}


def read_between(before: ReadCounters | None, after: ReadCounters | None) -> ReadCounters | None:
    """Return the reads of a disk between two readings; None if it was absent or was connected again in between."""
    if before is None or after is None or after.count < before.count or after.bytes < before.bytes:
        return None
    return ReadCounters(after.count - before.count, after.bytes - before.bytes)


def open_data_source(job: Job, folder: str | None, say: Notify) -> DataSource:
    """Return the source of a job's samples; `folder` is that of the prepared dataset, None if it has no files."""
    if job.measure.command:
        return FileSource(Path(job.measure.data), job, say) if job.measure.data else DataSource({"reason": NO_DATA})
    if folder is None or job.synthetic_batches or job.dataset.layout != "files":
        return DataSource({"medium": "memory"})
    return FileSource(Path(folder), job, say)


class WindowInstruments(NamedTuple):
    """The instruments that are read at the borders of windows."""

    meter: Meter
    gauges: Gauges
    data_source: DataSource
    idle_w: float | None = None  # before training; None if it was not measured
    gpu_monitor: GpuProcessMonitor = NO_GPUS
    gpu_counters: GpuCounters = NO_COUNTERS

    @property
    def has_border_counters(self) -> bool:
        """Whether anything except the gauges is read, or prepared, at the borders of windows."""
        return bool(self.meter.domains) or bool(self.gpu_counters.gpus) or isinstance(self.data_source, FileSource)

    def read_start(self) -> Reading:
        """Read everything before a window; the energy last, so that the two readings enclose little more than it."""
        self.gpu_monitor.poll()
        self.data_source.mark()
        self.gauges.mark(RECENT_NS)
        self.gpu_counters.start()
        return take_reading(self.meter)

    def read_end(self) -> Reading:
        """Read everything after a window except the gauges, which take most of the time; the energy first."""
        reading = take_reading(self.meter)
        self.gpu_counters.end()
        self.data_source.mark()
        return reading

    def other_gpu_processes(self) -> list[str]:
        """Return the other processes that computed on the GPUs at either border of the window that has just ended."""
        self.gpu_monitor.poll()
        return self.gpu_monitor.drain()


@contextmanager
def open_instruments(plan: Plan, terminal: Terminal) -> Iterator[WindowInstruments]:
    """Open the instruments of the devices that the plan uses; at the end, the last rows of the gauges are written."""
    root, period_s = plan.job.machine.root, plan.job.machine.gauges_period_s
    data_source = open_data_source(plan.job, plan.run["dataset"]["folder"], terminal.info)
    series = None
    if period_s is not None and plan.node.is_first:
        series = GaugeSeries(Path(root), period_s, data_source.devices)
    with (
        closing(open_meter(plan.job.meter.to_dict(), gpus=plan.gpus, root=root)) as meter,
        closing(Gauges(gpus=plan.gpus, root=root, series=series)) as gauges,
        closing(GpuProcessMonitor(plan.gpus)) as gpu_monitor,
        open_counters(counter_ids(plan.used_gpus, os.environ) if plan.on_gpu else ()) as counters,
    ):
        try:
            yield WindowInstruments(meter, gauges, data_source, gpu_monitor=gpu_monitor, gpu_counters=counters)
        finally:
            with suppress(OSError):  # the run may have failed because the disk is full
                write_gauges(gauges, plan.record)


def write_powers(meter: Meter, record: Record) -> PowerSamples:
    """Write the power samples taken so far to the record, and return them."""
    powers = meter.drain(time.monotonic_ns())
    record.append_power(powers.times_ns, {**powers.watts, "total": powers.total_w})
    return powers


def write_gauges(gauges: Gauges, record: Record, *, durably: bool = True) -> None:
    """Write the rows of the gauges' time series taken so far to the record."""
    if gauges.series and (rows := gauges.series.drain()):
        record.append_gauges(gauges.series.columns, rows, durably)


def measure_idle_w(meter: Meter, seconds: float, outcome: RunResult, terminal: Terminal) -> float | None:
    """Return the mean power while nothing trains, in watts; None if it is not measured."""
    terminal.stage()
    if meter.energy["source"] in ("counter", "sampled") and seconds > 0:
        terminal.info(f"Measuring idle power for {seconds:g} s.", style="dim")
    used = measure_idle(meter, seconds)
    outcome.notes += [f"idle power: {note}" for note in used.notes]
    return used.metrics.get("power_mean_w")


def check_idle(
    plan: Plan, instruments: WindowInstruments, since_ns: int, outcome: RunResult, terminal: Terminal
) -> None:
    """Warn if another process uses the GPU before training begins: it is listed, or the GPU was busy."""
    if not any(device.startswith("gpu") for device in plan.devices):
        return
    others = instruments.other_gpu_processes()
    load = instruments.gauges.window(since_ns, time.monotonic_ns()).get("gpu_utilization", 0.0)
    if not others and load >= BUSY_FRACTION:
        others = [f"another process uses the GPU: the GPU was {load:.0%} busy before training began"]
        terminal.warn(f"warning: {others[0]}\n  hint: end that process; it affects the times and energy of this run")
    plan.set_flags({"gpu_shared": "; ".join(others)})
    outcome.notes += [f"{text}." for text in others]


def cool_down(plan: Plan, outcome: RunResult, terminal: Terminal) -> None:
    """Wait until the device is cool enough, if the sweep requests it, and record for how long."""
    if plan.job.sweep.cool_below_c is None:
        return
    with closing(Gauges(gpus=plan.gpus, root=plan.job.machine.root)) as gauges:
        metadata, notes = wait_until_cool(
            plan.job.sweep.cool_below_c, plan.job.sweep.cool_wait_s, gauges, terminal.info
        )
    plan.describe(rest=metadata)
    outcome.notes += notes


def wait_until_cool(
    below_c: float,
    most_s: float,
    gauges: Gauges,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, float | str], list[str]]:
    """Wait until every sensor is below a temperature; return time and temperature for the record, and notes."""
    begun_s, temperature_c = clock(), gauges.now(TEMPERATURE_KEY)
    if temperature_c is not None and temperature_c >= below_c:
        say(f"Device temperature {temperature_c:.0f} C: waiting up to {most_s:g} s for less than {below_c:g} C.")
    while temperature_c is not None and temperature_c >= below_c and clock() - begun_s < most_s:
        pause(TEMPERATURE_PERIOD_S)
        temperature_c = gauges.now(TEMPERATURE_KEY)
    waited_s = round(clock() - begun_s, 3)
    if temperature_c is None:
        missing = {gauge.quantity: gauge.why for gauge in gauges.unavailable()}
        reason = missing.get(TEMPERATURE_KEY, "no sensor was read in time")
        return {"waited_s": waited_s, "reason": reason}, [f"sweep.cool_below_c={below_c:g} has no effect: {reason}."]
    notes = []
    if temperature_c >= below_c:
        waited = f"after {waited_s:.0f} s of waiting for less than sweep.cool_below_c={below_c:g}"
        notes = [f"the run began at {temperature_c:.0f} C, {waited}; raise it or `sweep.cool_wait_s={most_s:g}`"]
    return {"waited_s": waited_s, "temperature_c": temperature_c}, notes
