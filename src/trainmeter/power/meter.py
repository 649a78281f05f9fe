"""A meter is a cumulative counter of joules: what a window cost is the reading after it less that before."""

import logging
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple, Protocol

from trainmeter.build import build

log = logging.getLogger(__name__)

Joules = Mapping[str, float]
"""Joules by domain: of a reading, since some moment in the past; of a window, within it."""

SOURCES = ("counter", "sampled", "estimated")
"""Where joules come from, the most trustworthy first: a sum is as good as its worst part."""

TICKS = 10
"""What a window must last, in periods of a domain's instrument, for that domain to have joules in it.

A reading is up to a period old, so that a window's joules are wrong by up to a period's worth: here by 10 % at most.
"""


class Domain(NamedTuple):
    """A part of the machine that is metered apart."""

    source: str  # one of SOURCES
    period_s: float  # how often the instrument renews its number
    covers: str


class Meter(Protocol):
    """Reads the joules used so far, domain by domain; a domain that cannot be read is left out, never 0.

    `energy` says how trustworthy the total is: its `source` (counter, sampled, estimated, none), what it
    `covers`, and the `reason` where it is none or less than was asked for.
    """

    domains: dict[str, Domain]
    energy: dict[str, str | None]

    def read(self) -> dict[str, float]:
        """The joules of each domain since some moment in the past, by their instruments now."""

    def total(self, joules: Joules) -> float | None:
        """The domains that make the total, added up; None where one of them is missing."""

    def close(self) -> None:
        """Lets go of the instruments."""


class Absent:
    """The meter of a machine that has none, or of a job that asks for none."""

    def __init__(self, reason: str) -> None:
        self.domains: dict[str, Domain] = {}
        self.energy: dict[str, str | None] = {"source": "none", "covers": None, "reason": reason}

    def read(self) -> dict[str, float]:
        return {}

    def total(self, joules: Joules) -> None:
        return None

    def close(self) -> None:
        pass


class Counter(NamedTuple):
    """One domain's instrument: `read` gives joules, or raises OSError or ValueError when it cannot."""

    domain: Domain
    read: Callable[[], float]


class Counters:
    """The meter that is made of counters, all of which make the total."""

    def __init__(
        self,
        counters: Mapping[str, Counter],
        *,
        covers: str,
        reason: str | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.domains = {name: counter.domain for name, counter in counters.items()}
        source = max((domain.source for domain in self.domains.values()), key=SOURCES.index)
        self.energy: dict[str, str | None] = {"source": source, "covers": covers, "reason": reason}
        self.close = close
        self._counters = counters

    def read(self) -> dict[str, float]:
        joules = {}
        for name, counter in self._counters.items():
            try:
                joules[name] = counter.read()
            except (OSError, ValueError) as error:
                log.warning("The energy of %s cannot be read: %s", name, error)
        return joules

    def total(self, joules: Joules) -> float | None:
        return sum(joules[name] for name in self.domains) if self.domains.keys() <= joules.keys() else None


def open_meter(spec: Mapping[str, Any], *, gpus: Sequence[str], root: str | PathLike[str] = "/") -> Meter:
    """The meter that the job asks for, on the GPUs it uses (their UUIDs) and the machine found below `root`.

    A machine that lacks it gets what stands in for it: an estimate, or an absent meter, with the reason.
    """
    return build(spec, gpus=gpus, root=root)


def open_none(*, gpus: Sequence[str], root: str | PathLike[str], reason: str) -> Meter:
    """Nothing is metered, for the reason that the job's configuration gives."""
    return Absent(reason)


def spent(before: Joules, after: Joules) -> dict[str, float]:
    """The joules between two readings, of each domain that has any.

    A counter that ran backwards was reset, and one that stood still is slower than the window: neither tells
    what was used, so the domain is left out.
    """
    read_twice = before.keys() & after.keys()
    return {name: after[name] - before[name] for name in read_twice if after[name] > before[name]}


def window_energy(before: Joules, after: Joules, meter: Meter, seconds: float) -> dict[str, float]:
    """The metrics of a window that lasted so long between its readings: total and domains, or the estimate alone.

    A domain has joules where its counter went on (`spent`) and ticked at least TICKS times: in a window too short
    for one of them, the total is absent too. A run is a window like any other, from its first reading to its last,
    and has its total even where each of its epochs is too short.
    """
    joules = {name: value for name, value in spent(before, after).items() if lasts(meter.domains[name], seconds)}
    total = meter.total(joules)
    totals = {} if total is None else {"energy_j": total}
    if meter.energy["source"] == "estimated":
        return {f"estimated_{name}": value for name, value in totals.items()}
    return {**totals, **{f"energy_{name}_j": value for name, value in sorted(joules.items())}}


def unmetered(before: Joules, after: Joules, meter: Meter, seconds: float) -> list[str]:
    """Why a window has no joules of each domain that has none, to stand behind the window's name in the notes."""
    joules = spent(before, after)
    reasons = []
    for name, domain in sorted(meter.domains.items()):
        if not lasts(domain, seconds):
            ticks = f"ticks every {domain.period_s:g} s: energy takes {TICKS} ticks"
            reasons.append(f"{seconds:.3g} s is too short for {name}'s counter, which {ticks}.")
        elif name not in joules:
            reasons.append(f"no energy of {name}, whose counter gave nothing, stood still or ran backwards.")
    return reasons


def lasts(domain: Domain, seconds: float) -> bool:
    """Whether a window is long enough for what a domain's instrument says of it."""
    return seconds >= TICKS * domain.period_s
