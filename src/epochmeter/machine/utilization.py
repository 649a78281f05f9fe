"""What the machine did in a window: how busy, how hot and how fast it was, and what slowed it down."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from epochmeter.machine import nvml_gauges
from epochmeter.machine.gauges import POWER_CAPPED, THERMAL, Gauge, Slowed, amd_cards, find_gauges
from epochmeter.machine.periodic_thread import Rounds
from epochmeter.shared.units import NANOSECOND

PERIOD_S = 0.5
PATIENCE_S = 0.1
"""How long a border waits for its sample: an instrument that hangs costs the border no more."""
NEAR_S = 1.0
"""A sample further than this from a window tells nothing of it."""
FOLDS: dict[str, Callable[[Sequence[float]], float]] = {
    "gpu_utilization": fmean,
    "gpu_clock_mean_hz": fmean,
    "ram_peak_bytes": max,
    "temperature_max_c": max,
}
"""How a quantity's values make one: those of several instruments at a time, and those of a window."""
ABSENT = {
    "cpu_utilization": ("/proc/stat cannot be read", "mount /proc"),
    "gpu_utilization": ("no GPU is used that tells its load", ""),
    "gpu_clock_mean_hz": ("no GPU is used that tells its clock", ""),
    "ram_peak_bytes": ("/proc/meminfo cannot be read", "mount /proc"),
    "temperature_max_c": (
        "no sensor shows one, as in a virtual machine",
        "on a machine of its own, load its sensors' driver: sudo modprobe coretemp (Intel) or k10temp (AMD)",
    ),
    "throttling": ("nothing tells of it, as in a virtual machine", ""),
}
"""Why a quantity has no gauge, and what would change that."""


class Source(NamedTuple):
    """Where a quantity comes from, and how often it is read."""

    quantity: str
    source: str
    period_s: float


class Missing(NamedTuple):
    """Why a quantity is not to be had, and what would change that, as far as anything would."""

    quantity: str
    why: str
    remedy: str


class Sample(NamedTuple):
    """What could be read at a moment."""

    at_ns: int
    ticks: tuple[int, int] | None
    values: Mapping[str, float]
    slowed: Slowed


_moment = attrgetter("at_ns")


class Gauges:
    """Reads its gauges twice a second, and at each mark; `close` ends what they are read through.

    `reasons` says of quantities why they lack a gauge, where more is known than that.
    """

    def __init__(
        self,
        gauges: Sequence[Gauge],
        *,
        reasons: Mapping[str, str] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._gauges = gauges
        self._close = close
        self._reasons = dict(reasons or {})
        self._samples: list[Sample] = []
        self._told: list[Source] = []
        self._rounds = Rounds(self._look, period_s=PERIOD_S, patience_s=PATIENCE_S, name="gauges")

    def mark(self) -> None:
        """Takes a sample now, at a window's border."""
        self._rounds.now()

    def now(self, quantity: str) -> float | None:
        """A quantity as it is now, of all its instruments; None where it cannot be read."""
        self.mark()
        return self._samples[-1].values.get(quantity) if self._samples else None

    def window(self, opened_ns: int, closed_ns: int) -> dict[str, float]:
        """The means and peaks between two moments; a quantity that was not read then has none.

        The CPU's share is exact: what was busy between the marks. Peaks count the marks too, for what was used or
        hot at a border was so in the window; means do not, for a GPU's load there is that of the time before. The
        fractions of time in which clocks were lowered are fractions of the samples that report the cause.
        """
        around = self._around(opened_ns, closed_ns)
        inside = [sample for sample in around if opened_ns <= sample.at_ns <= closed_ns]
        metrics = {}
        ticks = [sample.ticks for sample in around if sample.ticks]
        if ticks and ticks[-1][1] > ticks[0][1]:
            metrics["cpu_utilization"] = (ticks[-1][0] - ticks[0][0]) / (ticks[-1][1] - ticks[0][1])
        for quantity, fold in FOLDS.items():
            samples = around if fold is max else inside
            if values := [sample.values[quantity] for sample in samples if quantity in sample.values]:
                metrics[quantity] = fold(values)
        for cause in (POWER_CAPPED, THERMAL):
            # The first sample covers the time before the window.
            if slowed := [bool(sample.slowed[cause]) for sample in around[1:] if cause in sample.slowed]:
                metrics[cause] = fmean(slowed)
        return metrics

    def throttled(self, opened_ns: int, closed_ns: int) -> list[str]:
        """What slowed the machine between two moments, and in how many of the samples."""
        samples = self._around(opened_ns, closed_ns)[1:]  # the first tells of the time before
        said = Counter(text for sample in samples for text in set(chain(*sample.slowed.values())))
        return [f"{text} in {count} of {len(samples)} samples" for text, count in sorted(said.items())]

    def forget(self, before_ns: int) -> None:
        """Drops the samples before a moment, all but the last of them."""
        older = bisect_right(self._samples, before_ns, key=_moment)
        del self._samples[: max(0, older - 1)]

    def sources(self) -> list[Source]:
        """What can be read now, and from where."""
        self.mark()
        return list(dict.fromkeys(self._told))

    def missing(self) -> list[Missing]:
        """What cannot be read now, and why."""
        there = {source.quantity for source in self.sources()}
        absent = ((quantity, *texts) for quantity, texts in ABSENT.items() if quantity not in there)
        return [Missing(quantity, self._reasons.get(quantity, why), remedy) for quantity, why, remedy in absent]

    def close(self) -> None:
        """Ends the reading."""
        if self._rounds.close():
            self._close()

    def _look(self) -> None:
        at_ns = time.monotonic_ns()
        readings: dict[str, list[Any]] = defaultdict(list)
        told = []
        for gauge in self._gauges:
            try:
                readings[gauge.quantity].append(gauge.read())
                told.append(Source(gauge.quantity, gauge.source, PERIOD_S))
            except (OSError, ValueError) as error:
                self._reasons[gauge.quantity] = str(error)
        values = {quantity: fold(readings[quantity]) for quantity, fold in FOLDS.items() if readings[quantity]}
        ticks = next(iter(readings["cpu_utilization"]), None)
        slowed: dict[str, list[str]] = defaultdict(list)
        for cause, texts in chain(*(reading.items() for reading in readings["throttling"])):
            slowed[cause] += texts
        self._samples.append(Sample(at_ns, ticks, values, dict(slowed)))
        self._told = told

    def _around(self, opened_ns: int, closed_ns: int) -> list[Sample]:
        """The samples from the last before a window to the first after it, as far as they are near."""
        near_ns = round(NEAR_S / NANOSECOND)
        near = [sample for sample in self._samples if opened_ns - near_ns <= sample.at_ns <= closed_ns + near_ns]
        before = bisect_right(near, opened_ns, key=_moment)
        after = bisect_left(near, closed_ns, key=_moment)
        return near[max(0, before - 1) : after + 1]


def open_gauges(*, gpus: Sequence[str], root: str | PathLike[str] = "/") -> Gauges:
    """The gauges of the machine below `root` and of the GPUs used, by UUID or place on the bus; they read at once."""
    found = list(find_gauges(Path(root), gpus))
    amd = amd_cards(Path(root))
    try:
        nvidia, close = nvml_gauges.start([gpu for gpu in gpus if gpu not in amd])
    except OSError as error:
        return Gauges(found, reasons=dict.fromkeys(("gpu_utilization", "gpu_clock_mean_hz"), str(error)))
    return Gauges([*found, *nvidia], close=close)
