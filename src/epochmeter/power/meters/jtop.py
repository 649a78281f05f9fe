"""Energy of a Jetson's rails from the samples of jtop's service (jetson-stats), and a connection to that service.

The client library is AGPL-3.0, optional, and imported in this module only.
"""

import multiprocessing
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.managers import BaseProxy
from pathlib import Path
from typing import Any

from epochmeter.machine.slurm import sharing_reason
from epochmeter.power.meter import Domain, Instrument, Meter, NullMeter
from epochmeter.power.meters.board_total import RailTable, rails_meter
from epochmeter.power.uncertainty import Response

LIMIT_S = 5.0
"""Time limit of a connection in seconds; the client itself would wait forever for a service that hangs."""
READS_PER_SAMPLE = 10
"""Number of reads of each sample of the service: a reading is a sample that was taken up to one period ago."""
MAX_AGE_PERIODS = 2
"""Number of periods without a new sample after which the power is unavailable."""


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
    opened = ExitStack()
    try:
        client = opened.enter_context(connect_client(period_s))
        domain = Domain("sampled", client.interval, "", response=Response(renewal_s=client.interval))
        service = ServiceReader(client)
        powers = {name: Instrument(domain, partial(service.watts, name)) for name in rail_watts(client.power)}
        if not powers:
            raise ValueError("jtop's service finds no power sensor on this board.")
        return rails_meter(powers, rails, client.interval / READS_PER_SAMPLE, close=opened.close)
    except (RuntimeError, ValueError) as error:
        opened.close()
        return NullMeter(str(error))


def rail_watts(power: Mapping[str, Any]) -> dict[str, float]:
    """Watts of each rail; the service lists the rail that feeds the module separately, as `tot`."""
    module = power.get("tot", {})
    rails = {**power.get("rail", {}), **({module["name"]: module} if "name" in module else {})}
    return {name: rail["power"] / 1000 for name, rail in rails.items()}


class ServiceReader:
    """Reads the service's last sample, as long as new ones arrive."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._uptime, self._renewed_s = client.uptime, time.monotonic()

    def watts(self, rail: str) -> float:
        """Return the last power of a rail; OSError if the service has ended or sends no samples any more."""
        try:
            self._client.ok(spin=True)  # without `spin` it would wait, and disconnect after a timeout
            watts, uptime = rail_watts(self._client.power)[rail], self._client.uptime
        except Exception as error:  # the service may end or send anything; the run continues without it
            raise OSError(service_error(error)) from error
        if uptime != self._uptime:
            self._uptime, self._renewed_s = uptime, time.monotonic()
        elif time.monotonic() - self._renewed_s > MAX_AGE_PERIODS * self._client.interval:
            raise OSError("jtop's service sends no new sample")
        return watts
