"""The instruments that are read at the borders of windows, and the idle power before and after training."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from epochmeter.console.console import Terminal
from epochmeter.machine.gauge_sampler import Gauges, open_gauges
from epochmeter.machine.gauge_series import GaugeSeries
from epochmeter.machine.gpu_counters import NO_COUNTERS, GpuCounters, counter_ids, open_counters
from epochmeter.machine.gpu_processes import NO_GPUS, GpuProcessMonitor, open_gpu_monitor
from epochmeter.power.meter import Meter, open_meter
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.window_energy import Reading, measure_idle, take_reading
from epochmeter.results.run_result import RunResult
from epochmeter.run.data_source import DataSource, FileSource, open_data_source
from epochmeter.run.plan import Plan
from epochmeter.shared.record import Record

BUSY_FRACTION = 0.1
"""Mean GPU load at idle, as a fraction, at which another process is assumed to use it; a desktop may cause less."""
RECENT_NS = 10_000_000
"""Largest age of the last window's gauges with which the next window begins; CPU time has a resolution of 10 ms."""


class WindowInstruments(NamedTuple):
    """The instruments that are read at the borders of windows.

    Attributes:
        gauges: Utilization, clock rates, memory, temperature and throttling.
        idle_w: The idle power before training, in watts; None if it was not measured.
    """

    meter: Meter
    gauges: Gauges
    data_source: DataSource
    idle_w: float | None = None
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
        closing(open_gauges(gpus=plan.gpus, root=root, series=series)) as gauges,
        closing(open_gpu_monitor(plan.gpus)) as gpu_monitor,
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
    """Warn if another process uses the GPU before training begins.

    Either the driver lists the process, or the GPU was busy while idle power was measured. On Jetsons and AMD GPUs only
    the latter is available.
    """
    if not any(device.startswith("gpu") for device in plan.devices):
        return
    others = instruments.other_gpu_processes()
    load = instruments.gauges.window(since_ns, time.monotonic_ns()).get("gpu_utilization", 0.0)
    if not others and load >= BUSY_FRACTION:
        others = [f"another process uses the GPU: the GPU was {load:.0%} busy before training began"]
        terminal.warn(f"warning: {others[0]}\n  hint: end that process; it affects the times and energy of this run")
    plan.set_flags({"gpu_shared": "; ".join(others)})
    outcome.notes += [f"{text}." for text in others]
