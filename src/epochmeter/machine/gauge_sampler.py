"""Samples of all gauges: utilization, clocks, temperatures, memory and throttling of the machine during a window."""

import time
from bisect import bisect_left, bisect_right
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from epochmeter.machine import nvml
from epochmeter.machine.amd import find_card, find_cards
from epochmeter.machine.gauge_series import GaugeSeries, level_columns
from epochmeter.machine.gauges import find_gauges, nvml_gauges
from epochmeter.machine.periodic_thread import PeriodicThread
from epochmeter.machine.recorded.root import root_folder
from epochmeter.shared.units import NANOSECOND

PERIOD_S = 0.5
READ_LIMIT_S = 0.1  # longest wait for a sample at a window's border, as an instrument may hang
MAX_DISTANCE_S = 1.0  # samples further than this from a window, in seconds, are not used for it
AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "gpu_utilization": fmean,
    "gpu_clock_mean_hz": fmean,
    "gpu_dram_active_fraction": fmean,
    "ram_peak_bytes": max,
    "temperature_max_c": max,
}
"""Aggregate function of a quantity: over all instruments of a sample, and over the samples of a window."""
COUNTERS = {"cpu_utilization": "cpu", "network_bytes": "network"}
"""Quantity whose gauge has several counters -> the one of the whole machine, which windows need."""
NOT_SLOWED: Mapping[str, Sequence[str]] = {}
UNAVAILABLE_REASONS = {
    "cpu_utilization": ("cannot read /proc/stat", "mount /proc"),
    "gpu_utilization": ("no GPU in use reports its utilization", ""),
    "gpu_clock_mean_hz": ("no GPU in use reports its clock", ""),
    "ram_peak_bytes": ("cannot read /proc/meminfo", "mount /proc"),
    "network_bytes": ("cannot read /proc/net/dev", "mount /proc"),
    "temperature_max_c": (
        "no temperature sensor, as in a virtual machine",
        "on a physical machine, load the sensor driver: sudo modprobe coretemp (Intel) or k10temp (AMD)",
    ),
    "throttling": ("no sensor reports throttling, as in a virtual machine", ""),
}
"""Why a quantity has no gauge, and a remedy if there is one."""


class Sample(NamedTuple):
    """The readings of all gauges, by quantity, the devices with lowered clocks, by cause, and (quantity, source)."""

    at_ns: int
    readings: Mapping[str, Sequence[Any]]
    slowed: Mapping[str, Sequence[str]]
    sources: Sequence[tuple[str, str]]


_moment = attrgetter("at_ns")


class Gauges:
    """The gauges of a machine, sampled twice per second and at the borders of windows; `series` gets all samples."""

    def __init__(self, *, gpus: Sequence[str], root: str | Path = "/", series: GaugeSeries | None = None) -> None:
        self.series = series
        self._errors: dict[str, Exception] = {}  # the last error of each quantity
        self._samples: list[Sample] = []
        self._opened = ExitStack()
        gauges, cards = list(find_gauges(root_folder(root), gpus)), find_cards(root_folder(root))
        if nvidia := [gpu for gpu in gpus if not find_card(gpu, cards)]:
            try:
                self._opened.callback(nvml.start())
                gauges += [gauge for uuid in nvidia for gauge in nvml_gauges(nvml.open_gpu(uuid))]
            except OSError as error:
                self._opened.close()
                self._errors = dict.fromkeys(("gpu_utilization", "gpu_clock_mean_hz"), error)
        self._gauges = list(zip(gauges, level_columns(gauges), strict=True))
        period_s = min(PERIOD_S, series.period_s) if series else PERIOD_S
        self._thread = PeriodicThread(self._take_sample, period_s=period_s, patience_s=READ_LIMIT_S, name="gauges")

    def mark(self, max_age_ns: int = 0) -> None:
        """Take a sample now, at a window's border, unless the age of the last sample is at most `max_age_ns`."""
        if not self._samples or time.monotonic_ns() - self._samples[-1].at_ns > max_age_ns:
            self._thread.run_now()

    def current_value(self, quantity: str) -> float | None:
        """Return the present value of a quantity, over all its instruments; None if it cannot be read."""
        self.mark()
        values = self._samples[-1].readings.get(quantity) if self._samples else None
        return AGGREGATES[quantity](values) if values else None

    def window(self, opened_ns: int, closed_ns: int) -> dict[str, float]:
        """Compute the means and peaks of a window (monotonic clock); a quantity without samples is missing.

        CPU utilization and network traffic are exact: differences of counters between the borders. Peaks include the
        samples at the borders; means do not, since a GPU's utilization there is an average over the time before. The
        fractions of time with lowered clocks are fractions of the samples that report the cause.
        """
        around = self._around(opened_ns, closed_ns)
        inside = [sample for sample in around if opened_ns <= sample.at_ns <= closed_ns]
        metrics = {}
        if (ticks := _increase(around, "cpu_utilization")) and ticks[1] > 0:
            metrics["cpu_utilization"] = ticks[0] / ticks[1]
        traffic = _increase(around, "network_bytes")
        if traffic and min(traffic) >= 0:  # less if an interface was removed
            metrics["network_received_bytes"], metrics["network_sent_bytes"] = traffic
        for quantity, aggregate in AGGREGATES.items():
            samples = around if aggregate is max else inside
            if values := [value for sample in samples for value in sample.readings.get(quantity, ())]:
                metrics[quantity] = aggregate(values)
        for cause in nvml.THROTTLE_REASONS:
            # The first sample covers the time before the window.
            if slowed := [bool(sample.slowed[cause]) for sample in around[1:] if cause in sample.slowed]:
                metrics[cause] = fmean(slowed)
        return metrics

    def throttled(self, opened_ns: int, closed_ns: int) -> list[str]:
        """Return the throttling in a window: one text per device and cause, with the number of samples."""
        samples = self._around(opened_ns, closed_ns)[1:]  # the first sample covers the time before the window
        counts = Counter(text for sample in samples for text in set(chain(*sample.slowed.values())))
        return [f"{text} in {count} of {len(samples)} samples" for text, count in sorted(counts.items())]

    def discard_before(self, before_ns: int) -> None:
        """Discard the samples before a moment except the last of them."""
        del self._samples[: max(0, bisect_right(self._samples, before_ns, key=_moment) - 1)]

    def sources(self) -> list[tuple[str, str]]:
        self.mark()
        return list(dict.fromkeys(self._samples[-1].sources if self._samples else ()))

    def unavailable(self) -> dict[str, tuple[str, str]]:
        """Return the reason and a remedy (empty if there is none) of each quantity that is not available."""
        available, unavailable = dict(self.sources()), {}
        for quantity, (why, remedy) in UNAVAILABLE_REASONS.items():
            if quantity not in available:
                error = self._errors.get(quantity, FileNotFoundError(why))
                # A remedy provides a missing instrument; it does not help if reading one fails.
                unavailable[quantity] = str(error), remedy if isinstance(error, FileNotFoundError) else ""
        return unavailable

    def close(self) -> None:
        if self._thread.close():
            self._opened.close()

    def _take_sample(self) -> None:
        at_ns = time.monotonic_ns()
        readings: dict[str, list[Any]] = defaultdict(list)
        sources, levels = [], {}
        for gauge, column in self._gauges:
            try:
                value = gauge.read()
            except (OSError, ValueError) as error:
                self._errors[gauge.quantity] = error
                continue
            readings[gauge.quantity].append(value)
            sources.append((gauge.quantity, gauge.source))
            if column:
                levels[column] = value
        slowed: dict[str, list[str]] = defaultdict(list)
        for cause, texts in chain(*(causes.items() for causes in readings["throttling"])):
            slowed[cause] += texts
        self._samples.append(self._compact(at_ns, readings, slowed, sources))
        if self.series:
            counters = ChainMap(*readings["cpu_utilization"], *readings["network_bytes"])
            self.series.add(at_ns, levels, counters, chain(*slowed.values()) if slowed else None)

    def _compact(
        self,
        at_ns: int,
        readings: Mapping[str, Sequence[Any]],
        slowed: Mapping[str, Sequence[str]],
        sources: Sequence[tuple[str, str]],
    ) -> Sample:
        """Return a sample with what windows need of it: an epoch of a day has 170,000, also on a machine of 128 cores.

        The counters of each core are left out, and what does not change is shared with the sample before it.
        """
        kept = {quantity: values for quantity, values in readings.items() if quantity != "throttling"}
        for quantity, name in COUNTERS.items():
            if quantity in kept:
                kept[quantity] = [{name: counters[name]} for counters in kept[quantity] if name in counters]
        if self._samples and self._samples[-1].sources == sources:
            sources = self._samples[-1].sources
        return Sample(at_ns, kept, dict(slowed) if slowed else NOT_SLOWED, sources)

    def _around(self, opened_ns: int, closed_ns: int) -> list[Sample]:
        """Return the samples from the last before a window to the first after it, at most `MAX_DISTANCE_S` outside."""
        near_ns = round(MAX_DISTANCE_S / NANOSECOND)
        near = [sample for sample in self._samples if opened_ns - near_ns <= sample.at_ns <= closed_ns + near_ns]
        before = bisect_right(near, opened_ns, key=_moment)
        after = bisect_left(near, closed_ns, key=_moment)
        return near[max(0, before - 1) : after + 1]


def _increase(samples: Sequence[Sample], quantity: str) -> tuple[int, int] | None:
    """Return the increase of a pair of counters from the first to the last sample that has it."""
    pairs = [reading[COUNTERS[quantity]] for sample in samples for reading in sample.readings.get(quantity, ())]
    return (pairs[-1][0] - pairs[0][0], pairs[-1][1] - pairs[0][1]) if len(pairs) > 1 else None
