"""Energy of a Jetson's rails from the samples of jtop's service (jetson-stats), and a connection to that service.

The client library is AGPL-3.0, optional, and imported in this module only.
"""

import logging
import multiprocessing
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.managers import BaseProxy
from pathlib import Path
from typing import Any

from epochmeter.machine.slurm import sharing_reason
from epochmeter.power.meter import Domain, Meter, NullMeter, PowerSource
from epochmeter.power.meters.board_total import RailTable, rail_scope, total_of
from epochmeter.power.power_series import PowerSeries, Sampling
from epochmeter.power.uncertainty import Response
from epochmeter.shared.units import NANOSECOND

log = logging.getLogger(__name__)

LIMIT_S = 5.0
"""Time limit of a connection in seconds; the client itself would wait forever for a service that hangs."""
WAIT_PERIODS = 2
"""Number of periods after a window to wait for a later sample."""
MAX_MISSED_SAMPLES = 3
"""Number of periods without a new sample after which the service is unavailable."""


@contextmanager
def connect_client(interval_s: float, limit_s: float = LIMIT_S) -> Iterator[Any]:
    """Connect to jtop's service and yield the client; RuntimeError if it fails, now or later.

    If another client is connected, its sampling period applies instead of `interval_s`.
    """
    method = multiprocessing.get_start_method(allow_none=True)
    try:
        import jtop

        client = jtop.jtop(interval=interval_s)
    except ImportError as error:
        remedy = "`make jtop` adds it here, `sudo pip3 install jetson-stats` installs the service."
        raise RuntimeError(f"jtop's client is not installed: {remedy}") from error
    finally:
        multiprocessing.set_start_method(method, force=True)  # importing jtop sets it to fork
    start_client(client, limit_s)
    try:
        yield client
    except (jtop.JtopException, EOFError, ConnectionError) as error:
        raise RuntimeError(service_error(error)) from error
    finally:
        # `close` waits for a thread that detects libraries, which may take seconds.
        threading.Thread(target=client.close, name="jtop closing", daemon=True).start()


def start_client(client: Any, limit_s: float) -> None:
    """Start the client; RuntimeError if it fails or takes longer than `limit_s`."""
    failures: list[Exception] = []

    def begin() -> None:
        try:
            client.start()
        except Exception as error:  # a service of another version may send anything
            failures.append(error)

    beginning = threading.Thread(target=begin, name="jtop starting", daemon=True)
    beginning.start()
    beginning.join(limit_s)
    # At exit, multiprocessing would close its proxies, and wait for a service that hangs.
    for proxy in [value for value in vars(client).values() if isinstance(value, BaseProxy)]:
        proxy._close.cancel()  # type: ignore[attr-defined]
    if beginning.is_alive():
        raise RuntimeError(
            f"No answer from jtop's service within {limit_s:g} s. Restart it: sudo systemctl restart jtop"
        )
    if failures:
        raise RuntimeError(service_error(failures[0])) from failures[0]


def service_error(error: Exception) -> str:
    """Describe an error of the service in one line, with a remedy."""
    if isinstance(error.__context__, PermissionError):
        return "jtop's service refuses this user: sudo usermod -aG jtop $USER, then log in again."
    message = " ".join(str(error).split()) or type(error).__name__
    return f"jtop's service failed: {message}"


def open_jtop(*, gpus: Sequence[str], root: Path, period_s: float = 0.5, rails: RailTable | None = None) -> Meter:
    """Open the meter of a board's rails, sampled by jtop's service about every `period_s` seconds."""
    if others := sharing_reason():
        return NullMeter(others)
    if root != Path("/"):
        return NullMeter(f"jtop's service measures this machine, not the one below {root}.")
    with ExitStack() as opened:
        try:
            client = opened.enter_context(connect_client(period_s))
            power_w, table = rail_watts(client.power), rails or RailTable()
            if not power_w:
                raise ValueError("jtop's service finds no power sensor on this board.")
            total = total_of(list(power_w), table)
        except (RuntimeError, ValueError) as error:
            return NullMeter(str(error))
        held_s = client.interval  # a reading is constant until the service's next sample
        held = Domain("sampled", held_s, "", response=Response(renewal_s=held_s))
        domains = {name: held._replace(covers=rail_scope(name, total, table)) for name in power_w}
        return Meter(
            powers=JtopSampler(client, domains, total=total.rails),
            total=total.rails,
            covers=total.covers,
            reason=total.reason,
            close=opened.pop_all().close,
        )


def rail_watts(power: Mapping[str, Any]) -> dict[str, float]:
    """Watts of each rail; the service lists the rail that feeds the module separately, as `tot`."""
    module = power.get("tot", {})
    rails = {**power.get("rail", {}), **({module["name"]: module} if "name" in module else {})}
    return {name: rail["power"] / 1000 for name, rail in rails.items()}


class JtopSampler(PowerSource):
    """The service's power samples as they arrive; the counterpart of `Sampler`."""

    def __init__(self, client: Any, domains: Mapping[str, Domain], *, total: Sequence[str]) -> None:
        self.domains = dict(domains)
        self._client = client
        self._bridge_s = MAX_MISSED_SAMPLES * client.interval
        # The service timestamps its samples, so they have no lag; no sample is taken at a border.
        self._series = PowerSeries(domains, total=total, bridge_s=self._bridge_s, pace_s=client.interval)
        self._uptime_s, self._last_ns = 0.0, 0
        self._error = False
        self._closed = threading.Event()
        self._take()
        threading.Thread(target=self._listen, name="jtop", daemon=True).start()

    def sampling(self, opened_ns: int, closed_ns: int) -> Sampling:
        """Sampling statistics of a window; waits for the service's first sample after it."""
        until_ns = closed_ns + round(WAIT_PERIODS * self._client.interval / NANOSECOND)
        while self._last_ns <= closed_ns and time.monotonic_ns() < until_ns and not self._error:
            time.sleep(self._client.interval / 20)
        return self._series.sampling(opened_ns, closed_ns)

    def close(self) -> bool:
        """Stop listening; the thread ends by itself."""
        self._closed.set()
        return True

    def _listen(self) -> None:
        try:
            # `spin` avoids the client's own wait, after whose timeout it disconnects.
            while not self._closed.wait(self._client.interval / 2) and self._client.ok(spin=True):
                self._take()
        except Exception as error:  # the service may end or send anything; the run continues without it
            self._set_error(service_error(error))

    def _take(self) -> None:
        uptime_s = self._client.uptime.total_seconds()
        if uptime_s > self._uptime_s:
            suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()  # uptime includes suspend
            at_ns = round((uptime_s - suspended_s) / NANOSECOND)
            self._series.add(at_ns, rail_watts(self._client.power))
            self._uptime_s, self._last_ns, self._error = uptime_s, at_ns, False
        elif (time.monotonic_ns() - self._last_ns) * NANOSECOND > self._bridge_s:
            self._set_error("jtop's service sends no new sample")

    def _set_error(self, why: str) -> None:
        if not self._error and not self._closed.is_set():
            self._error = True
            self._series.add(self._last_ns + 1, {}, dict.fromkeys(self.domains, why))
            log.warning("the board's power is no longer available: %s", why)
