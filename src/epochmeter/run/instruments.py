"""The instruments and the data source that are read at the borders of windows, idle power, and cooling down."""

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from epochmeter.config.schema import Job
from epochmeter.console.console import Terminal
from epochmeter.machine.cpu_load import CpuLoad
from epochmeter.machine.disk import ReadCounters, read_counters
from epochmeter.machine.gauge_sampler import Gauges
from epochmeter.machine.gauge_series import GaugeSeries
from epochmeter.machine.gpu_counters import NO_COUNTERS, GpuCounters, counter_ids
from epochmeter.machine.gpu_processes import NO_GPUS, GpuProcessMonitor
from epochmeter.machine.marks import Marks
from epochmeter.machine.page_cache import Residency, drop_caches, prepare_cache, residency_warning
from epochmeter.machine.process_memory import NO_MEMORY, ProcessMemory
from epochmeter.machine.recorded.root import root_folder, storage_of
from epochmeter.power.meter import EnergyMeter, open_meter
from epochmeter.power.power_series import PowerSamples
from epochmeter.power.window_energy import IdlePower, Reading, measure_idle, take_reading
from epochmeter.results import documents
from epochmeter.results.bottleneck import MEMORY, SYNTHETIC
from epochmeter.results.run_info import Idle, Storage
from epochmeter.results.run_result import RunResult
from epochmeter.run.plan import Plan
from epochmeter.run.validated import use_validated
from epochmeter.shared.problem import Problem, format_problem
from epochmeter.shared.record import Record
from epochmeter.shared.units import NANOSECOND, percent

TEMPERATURE_KEY = "temperature_max_c"
TEMPERATURE_PERIOD_S = 1.0
BUSY_FRACTION = 0.1
"""Mean GPU load at idle, as a fraction, at which another process is assumed to use it; a desktop may cause less."""
RECENT_NS = 10_000_000
"""Largest age of the last window's gauges with which the next window begins; CPU time has a resolution of 10 ms."""
NO_DATA = "the files that the script reads are not known: `measure.data=` names them"


class DataSource:
    """The files of a dataset, on a disk and partly in the page cache; none if samples are in memory or unknown.

    `metadata` is its description in the record, and `devices` has the block devices that count its reads.
    """

    def __init__(self, job: Job, folder: str | None, say: Callable[[str], object]) -> None:
        """`folder` is that of the prepared dataset; None if it has no files."""
        self._job, self._say = job, say
        files = folder if job.dataset.layout == "files" and job.has_loader else None
        if job.measure.command:
            files = job.measure.data
        self.files = Path(files) if files else None
        self.metadata: Storage = {"medium": MEMORY if job.has_loader else SYNTHETIC}
        if job.measure.command:
            self.metadata = {"reason": NO_DATA}
        self.devices: tuple[str, ...] = ()
        self._before: float | None = None
        self._marks: Marks[ReadCounters | None] = Marks()
        if self.files:
            self._disk, description = storage_of(self.files, job.machine.root)
            self._residency = Residency(self.files)
            self.metadata, self.devices = documents.check(description, Storage), self._disk.devices

    @property
    def medium(self) -> str | None:
        """What the samples are on; None if it is not known."""
        return self.metadata.get("medium")

    def prepare(self, epoch: int) -> list[str]:
        """Bring the page cache into the configured state before an epoch, and return notes on it."""
        if not self.files:
            return []
        if self._job.cache == "warm" and epoch == 0:
            self._say(f"Reading {self.files} into the page cache.")
        state = prepare_cache(self._job.cache, self.files, epoch)
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
        """Read the disk's counters, at a border of a window."""
        if self.files:
            self._marks.add(time.monotonic_ns(), read_counters(self._disk))

    def window(self, name: str, opened_ns: int, closed_ns: int) -> dict[str, float]:
        """Return the metrics of a window, which is an epoch, an evaluation, or one that a script has named."""
        if not self.files:
            return {}
        metrics: dict[str, float] = {}
        before, after = self._marks.at_borders(opened_ns, closed_ns) or (None, None)
        # None: the disk is absent. A smaller count: it was connected again in between.
        if before and after and not (after.count < before.count or after.bytes < before.bytes):
            metrics["read_bytes"] = after.bytes - before.bytes
            if name == "epoch":
                seconds = (closed_ns - opened_ns) * NANOSECOND
                metrics["read_iops"] = (after.count - before.count) / seconds
                metrics["read_bytes_per_s"] = metrics["read_bytes"] / seconds
        if name == "epoch":
            fractions = {"before": self._before, "after": self._residency.fraction()}
            metrics |= {
                f"page_cache_residency_{at}": fraction for at, fraction in fractions.items() if fraction is not None
            }
        return metrics

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment except the last of them."""
        self._marks.discard_before(before_ns)


class WindowInstruments(NamedTuple):
    """The instruments that are read at the borders of windows."""

    meter: EnergyMeter
    gauges: Gauges
    data_source: DataSource
    cpu_load: CpuLoad
    idle: IdlePower | None = None  # before training; None if it was not measured
    gpu_monitor: GpuProcessMonitor = NO_GPUS
    gpu_counters: GpuCounters = NO_COUNTERS
    memory: ProcessMemory = NO_MEMORY

    def read_start(self) -> Reading:
        """Read everything before a window; the energy last, so that the two readings enclose little more than it."""
        self.gpu_monitor.poll()
        self.data_source.mark()
        self.gauges.mark(RECENT_NS)
        self.cpu_load.mark()
        self.memory.mark()
        self.gpu_counters.mark()
        return take_reading(self.meter)

    def read_end(self) -> Reading:
        """Read what the training process waits for after a window; the energy first. `mark_end` reads the rest."""
        reading = take_reading(self.meter)
        self.gpu_counters.mark()
        self.data_source.mark()
        return reading

    def mark_end(self) -> None:
        """Read the gauges, the processor's load and the memory after a window, which takes most of the time."""
        self.cpu_load.mark()
        self.memory.mark()
        self.gauges.mark()

    def discard_before(self, before_ns: int) -> None:
        """Discard the readings before a moment, as far as no later window needs them."""
        for instrument in (self.gauges, self.cpu_load, self.memory, self.gpu_counters, self.data_source):
            instrument.discard_before(before_ns)

    def own_processes(self, pids: Collection[int]) -> None:
        """Take processes, with their descendants, as those of the run."""
        self.cpu_load.own_pids.update(pids)
        self.memory.own_pids.update(pids)
        self.gpu_monitor.own_pids.update(pids)

    def mark_others(self, since_ns: int | None) -> tuple[int, list[str]]:
        """Mark a moment, and return it with what other processes did since an earlier one, if any: on GPUs and CPU."""
        self.cpu_load.mark()
        at_ns = time.monotonic_ns()
        if since_ns is None:
            self.gpu_monitor.poll()
            return at_ns, []
        on_cpu = self.cpu_load.window(since_ns, at_ns).note
        return at_ns, [*self.other_gpu_processes(), *([on_cpu] if on_cpu else [])]

    def other_gpu_processes(self) -> list[str]:
        """Return the other processes that computed on the GPUs at either border of the window that has just ended."""
        self.gpu_monitor.poll()
        return self.gpu_monitor.drain()

    def has_identified(self, others: Collection[str]) -> bool:
        """Return whether one of the processes that were returned last is known to be of another program."""
        return bool(others) and self.gpu_monitor.are_identified


@contextmanager
def open_instruments(plan: Plan, terminal: Terminal) -> Iterator[WindowInstruments]:
    """Open the instruments of the devices that the plan uses; at the end, the last rows of the gauges are written."""
    root, period_s = plan.job.machine.root, plan.job.machine.gauges_period_s
    data_source = DataSource(plan.job, (plan.run.dataset or {}).get("folder"), terminal.info)
    series = None
    if period_s is not None and plan.node.is_first:
        series = GaugeSeries(root_folder(root), period_s, data_source.devices)
    with (
        closing(open_meter(plan.job.meter.to_dict(), gpus=plan.gpus, root=root)) as meter,
        closing(Gauges(gpus=plan.gpus, root=root, series=series)) as gauges,
        closing(GpuProcessMonitor(plan.gpus)) as gpu_monitor,
        closing(GpuCounters(counter_ids(plan.used_gpus, os.environ) if plan.on_gpu else ())) as counters,
    ):
        use_validation(plan, meter)
        try:
            load, memory = CpuLoad(root_folder(root)), ProcessMemory()
            yield WindowInstruments(
                meter, gauges, data_source, load, gpu_monitor=gpu_monitor, gpu_counters=counters, memory=memory
            )
        finally:
            with suppress(OSError):  # the run may have failed because the disk is full
                write_gauges(gauges, plan.record)


def use_validation(plan: Plan, meter: EnergyMeter) -> None:
    """Let the meter use the responses that the validation of this machine has measured, and record them."""
    if plan.run.validation and (used := use_validated(meter, plan.validation, plan.job.meter.name)):
        plan.run.validation["validated_response"] = used
        plan.describe(durably=False)


def write_powers(meter: EnergyMeter, record: Record, before_ns: int | None = None) -> PowerSamples:
    """Write the power samples taken so far, or before a moment, to the record, and return them."""
    powers = meter.drain(time.monotonic_ns() if before_ns is None else before_ns)
    record.append_power(powers.times_ns, {**powers.watts, "total": powers.total_w})
    return powers


def write_gauges(gauges: Gauges, record: Record, *, durably: bool = True) -> None:
    """Write the rows of the gauges' time series taken so far to the record."""
    if gauges.series and (rows := gauges.series.drain()):
        record.append_gauges(gauges.series.columns, rows, durably)


def measure_idle_power(meter: EnergyMeter, seconds: float, result: RunResult, terminal: Terminal) -> IdlePower | None:
    """Return the mean power while nothing trains; None if it is not measured."""
    terminal.end_stage()
    if meter.energy["source"] in ("counter", "sampled") and seconds > 0:
        terminal.info_once(f"Measuring idle power before and after training, for {seconds:g} s.")
        terminal.stage("Measuring idle power")
    used = measure_idle(meter, seconds)
    result.notes += [f"idle power: {note}" for note in (*used.notes, *used.disagreements)]
    if "energy_j" not in used.metrics:
        return None
    return IdlePower(used.metrics["power_mean_w"], used.metrics["energy_uncertainty_j"] / seconds)


def idle_record(before: IdlePower | None, after: IdlePower | None = None) -> Idle:
    """Return the idle powers around training, as recorded; one that was not measured is absent."""
    idle: Idle = {}
    if before:
        idle["before"] = {"power_w": before.power_w, "uncertainty_w": before.uncertainty_w}
    if after:
        idle["after"] = {"power_w": after.power_w, "uncertainty_w": after.uncertainty_w}
    return idle


def check_idle(
    plan: Plan, instruments: WindowInstruments, since_ns: int, result: RunResult, terminal: Terminal
) -> None:
    """Warn if another process uses the GPU before training begins: it is listed, or the GPU was busy."""
    if not any(device.startswith("gpu") for device in plan.devices):
        return
    others = instruments.other_gpu_processes()
    load = instruments.gauges.window(since_ns, time.monotonic_ns()).get("gpu_utilization", 0.0)
    if not others and load >= BUSY_FRACTION:
        others = [f"another process uses the GPU: the GPU was {percent(load)} busy before training began"]
        problem = Problem(others[0], "end that process; it affects the times and energy of this run")
        terminal.warn(format_problem(problem, "warning"))
    plan.set_flags({"gpu_shared": "; ".join(others)})
    result.notes += [f"{text}." for text in others]


def cool_down(plan: Plan, result: RunResult, terminal: Terminal) -> None:
    """Wait until every sensor is below `sweep.cool_below_c`, if that is set; record how long, and the temperature."""
    below_c, most_s, began_s = plan.job.sweep.cool_below_c, plan.job.sweep.cool_wait_s, time.monotonic()
    if below_c is None:
        return
    with closing(Gauges(gpus=plan.gpus, root=plan.job.machine.root)) as gauges:
        temperature_c = gauges.current_value(TEMPERATURE_KEY)
        if temperature_c is not None and temperature_c >= below_c:
            text = f"waiting up to {most_s:g} s for less than {below_c:g} C."
            terminal.info(f"Device temperature {temperature_c:.0f} C: {text}")
        while temperature_c is not None and temperature_c >= below_c and time.monotonic() - began_s < most_s:
            time.sleep(TEMPERATURE_PERIOD_S)
            temperature_c = gauges.current_value(TEMPERATURE_KEY)
        missing = gauges.unavailable()
    waited_s = round(time.monotonic() - began_s, 3)
    if temperature_c is None:
        reason, _ = missing.get(TEMPERATURE_KEY, ("no sensor was read in time", ""))
        plan.run.rest = {"waited_s": waited_s, "reason": reason}
        plan.describe(durably=False)
        result.notes.append(f"sweep.cool_below_c={below_c:g} has no effect: {reason}.")
        return
    plan.run.rest = {"waited_s": waited_s, "temperature_c": temperature_c}
    plan.describe(durably=False)
    if temperature_c >= below_c:
        waited = f"after {waited_s:.0f} s of waiting for less than sweep.cool_below_c={below_c:g}"
        text = f"the run began at {temperature_c:.0f} C, {waited}; raise it or `sweep.cool_wait_s={most_s:g}`"
        result.notes.append(text)
