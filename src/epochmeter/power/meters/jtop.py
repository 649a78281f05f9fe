"""jtop (jetson-stats): the samples that its service takes of a Jetson's rails, and its client for whoever needs more.

Its client is AGPL-3.0, optional, and imported here alone.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.managers import BaseProxy
from os import PathLike
from pathlib import Path
from typing import Any

from epochmeter.machine.slurm import company
from epochmeter.power.meter import Absent, Domain, Instruments, Meter
from epochmeter.power.meters.board_total import covered, total_of
from epochmeter.power.power_series import Powers, Sampling, Series
from epochmeter.shared.units import NANOSECOND

log = logging.getLogger(__name__)

LIMIT_S = 5.0
"""How long the service may take to answer: a client that waits for one that hangs would wait for ever."""
WAIT = 2
"""Number of periods after a window to wait for a later sample."""
SILENCES = 3
"""After so many periods without a new sample the service is lost."""


@contextmanager
def connected(interval_s: float, limit_s: float = LIMIT_S) -> Iterator[Any]:
    """A started client of jtop's service, whose samples are `interval_s` apart, or as far as an earlier client asked.

    RuntimeError, with the reason and the remedy, where none can be had within `limit_s`, or where it is lost.
    """
    with start_method_kept():
        try:
            import jtop
        except ImportError as error:
            remedy = "make jtop adds it here, sudo pip3 install jetson-stats its service to the board."
            raise RuntimeError(f"jtop's client is not installed: {remedy}") from error
        client = jtop.jtop(interval=interval_s)
    start(client, limit_s)
    try:
        yield client
    except (jtop.JtopException, EOFError, ConnectionError) as error:
        raise RuntimeError(complaint(error)) from error
    finally:
        # It waits for a thread that looks for CUDA and the like, which may take seconds.
        threading.Thread(target=client.close, name="jtop closing", daemon=True).start()


@contextmanager
def start_method_kept() -> Iterator[None]:
    """Keeps multiprocessing's start method as it was, none chosen included: jtop's import forces fork."""
    method = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(method, force=True)


def start(client: Any, limit_s: float) -> None:
    """Starts the client; RuntimeError where it cannot, or not in time."""
    failures: list[Exception] = []

    def begin() -> None:
        try:
            client.start()
        except Exception as error:  # whatever a service of another version sends
            failures.append(error)

    beginning = threading.Thread(target=begin, name="jtop starting", daemon=True)
    beginning.start()
    beginning.join(limit_s)
    # At this process's end multiprocessing would take leave of the service, and wait for one that hangs.
    for proxy in [value for value in vars(client).values() if isinstance(value, BaseProxy)]:
        proxy._close.cancel()  # type: ignore[attr-defined]
    if beginning.is_alive():
        raise RuntimeError(f"jtop's service is silent for {limit_s:g} s. Start it anew: sudo systemctl restart jtop")
    if failures:
        raise RuntimeError(complaint(failures[0])) from failures[0]


def complaint(error: Exception) -> str:
    """What is wrong with the service, on one line, and what to do."""
    if isinstance(error.__context__, PermissionError):
        return "jtop's service does not let this user in: sudo usermod -aG jtop $USER, and log in anew."
    said = " ".join(str(error).split()) or type(error).__name__
    return f"jtop's service cannot be used: {said}"


def open_jtop(
    *, gpus: Sequence[str], root: str | PathLike[str], period_s: float = 0.5, rails: Mapping[str, Any] | None = None
) -> Meter:
    """The rails of the board, sampled by jtop's service every `period_s`, or as often as an earlier client asked.

    `rails` is the board's table, as `open_rails` has it. Absent, with the reason, where the service cannot be used.
    """
    if others := company(os.environ):
        return Absent(others)
    if Path(root) != Path("/"):
        return Absent(f"jtop's service tells of this machine, not of the one below {root}.")
    with ExitStack() as opened:
        try:
            client = opened.enter_context(connected(period_s))
        except RuntimeError as error:
            return Absent(str(error))
        found, table = watts(client.power), rails or {}
        total = total_of(list(found), table)
        if fault := unfit(found, total.rails):
            return Absent(fault)
        held_s = client.interval  # what the service tells holds until its next sample
        domains = {name: Domain("sampled", held_s, covered(name, total, table), renewal_s=held_s) for name in found}
        return Instruments(
            powers=Feed(client, domains, total=total.rails),
            total=total.rails,
            covers=total.covers,
            reason=total.reason,
            close=opened.pop_all().close,
        )


def unfit(found: Iterable[str], total: Sequence[str]) -> str | None:
    """Why the service's samples are no meter of the module, or None where they are."""
    if not found:
        return "jtop's service finds no power sensor on this board."
    if lacking := set(total) - set(found):
        absent = ", ".join(sorted(lacking))
        return f"jtop's service tells nothing of {absent}, of which the total is made: found {', '.join(found)}."
    return None


def watts(power: Mapping[str, Any]) -> dict[str, float]:
    """The watts of each rail; the one that feeds the module the service calls its total, and takes from the others."""
    whole = power.get("tot", {})
    rails = {**power.get("rail", {}), **({whole["name"]: whole} if "name" in whole else {})}
    return {name: rail["power"] / 1000 for name, rail in rails.items()}


class Feed:
    """The service's samples as they come: what a `Sampler` is to instruments of our own.

    Each is stamped with the moment at which the service took it, which it tells in seconds since the machine started;
    one that comes a second time is dropped.
    """

    def __init__(self, client: Any, domains: Mapping[str, Domain], *, total: Sequence[str]) -> None:
        self.domains = dict(domains)
        self._client = client
        self._bridge_s = SILENCES * client.interval
        # The service timestamps its samples, so they have no lag; no sample is taken at a border.
        self._series = Series(domains, total=total, bridge_s=self._bridge_s, pace_s=client.interval)
        self._uptime_s, self._last_ns = 0.0, 0
        self._lost = False
        self._closed = threading.Event()
        self._take()
        threading.Thread(target=self._listen, name="jtop", daemon=True).start()

    def joules(self, *, fresh: bool = True) -> dict[str, float]:
        """Each rail's joules up to now, from the last sample on at its power; without those that are lost."""
        return self._series.joules(time.monotonic_ns())

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling:
        """How well the stretch between two moments was sampled; returns once the service has sampled after it."""
        until_ns = closed_ns + round(WAIT * self._client.interval / NANOSECOND)
        while self._last_ns <= closed_ns and time.monotonic_ns() < until_ns and not self._lost:
            time.sleep(self._client.interval / 20)
        return self._series.sampling(opened_ns, closed_ns)

    def drain(self, before_ns: int) -> Powers:
        """Hands over the samples before a moment, and forgets them."""
        return self._series.drain(before_ns)

    def close(self) -> bool:
        """Listens no more; what still does lets go by itself."""
        self._closed.set()
        return True

    def _listen(self) -> None:
        try:
            # Told not to wait: a client that waits for longer than it likes gives up for good.
            while not self._closed.wait(self._client.interval / 2) and self._client.ok(spin=True):
                self._take()
        except Exception as error:  # its death, or whatever else it sends: the run goes on without
            self._lose(complaint(error))

    def _take(self) -> None:
        uptime_s = self._client.uptime.total_seconds()
        if uptime_s > self._uptime_s:
            asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()  # which the one clock counts
            at_ns = round((uptime_s - asleep_s) / NANOSECOND)
            self._series.add(at_ns, watts(self._client.power))
            self._uptime_s, self._last_ns, self._lost = uptime_s, at_ns, False
        elif (time.monotonic_ns() - self._last_ns) * NANOSECOND > self._bridge_s:
            self._lose("jtop's service gives no new sample")

    def _lose(self, why: str) -> None:
        if not self._lost and not self._closed.is_set():
            self._lost = True
            self._series.add(self._last_ns + 1, {}, dict.fromkeys(self.domains, why))
            log.warning("The board's power cannot be read any more: %s", why)
