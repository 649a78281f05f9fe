"""Instruments: energy counters and power sensors, and what each measures."""

from collections.abc import Callable
from typing import NamedTuple

from epochmeter.power.uncertainty import Response

SOURCES = ("counter", "sampled", "estimated")
"""Kinds of energy measurement, the most accurate first: a sum is as accurate as its worst part."""

MIN_TICKS = 10  # shortest window that a counter can measure, in its renewal periods: the error is 10 % at most
MIN_MEMORY_SPANS = 2
"""The same for sampled power, in multiples of the sensor's memory: most readings contain only power of the window."""


NODE_SCOPE = "node (all that its controller measures: CPUs, memory, accelerators, network)"
"""The scope of an instrument that includes every other part of the machine."""


class Domain(NamedTuple):
    """A separately metered part of the machine, and the properties of its sensor; `source` is one of `SOURCES`.

    Example:
        >>> from epochmeter.power.instrument import Domain
        >>> Domain("counter", period_s=1.0, covers="the machine at its socket", step=0.1).step
        0.1
    """

    source: str
    period_s: float  # how often a counter renews its value, or how often power is sampled, in seconds
    covers: str
    step: float = 0.0  # resolution: joules of a counter, watts of a power; 0: unknown
    response: Response = Response()  # response of the power sensor, also of one whose readings a counter adds up
    limit_w: float | None = None  # the largest power that the part can use; None: unknown


class Instrument(NamedTuple):
    """An energy counter or a power sensor.

    Example:
        >>> from epochmeter.power.instrument import Domain, Instrument
        >>> Instrument(Domain("sampled", period_s=0.1, covers="the board"), read=lambda: 12.5).read()
        12.5
    """

    domain: Domain
    read: Callable[[], float]  # returns joules or watts; raises OSError or ValueError


def oldest_s(domain: Domain) -> float:
    """The largest age of a counter's reading, in seconds: how long before it the power was that it lacks."""
    smeared_s = max(0.0, (domain.response.averaging_s or 0.0) - domain.period_s) / 2
    return domain.period_s + domain.response.lag_s + smeared_s


def mean_age_s(domain: Domain) -> float:
    """The mean age of a counter's reading, in seconds: its last renewal is half a period ago on average."""
    return oldest_s(domain) - domain.period_s / 2


def shortest_s(domain: Domain) -> float:
    """The shortest window that a domain's instrument can measure, in seconds."""
    return MIN_MEMORY_SPANS * domain.response.memory_s if domain.source == "sampled" else MIN_TICKS * domain.period_s
