"""A connection to jtop's service (jetson-stats), which reads and sets a Jetson's power as root.

The client library is AGPL-3.0, optional, and imported in this module only. A recorded machine replaces the client.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from epochmeter.machine import jetson
from epochmeter.shared.problem import MachineError, Problem, machine_error

LIMIT_S = 5.0  # time limit of a connection in seconds; the client itself would wait forever for a service that hangs
NO_JETSON = "this machine is not a Jetson"
_replacement: Any = None


def replace_client(replacement: Any) -> None:
    """Use the recorded client of another machine from now on; None: this machine's service."""
    global _replacement
    _replacement = replacement


def no_service(root: Path) -> str:
    """Return why no service of jtop can measure the machine below a root; empty if one may."""
    if _replacement is not None:
        return str(_replacement.no_service)
    if root != Path("/"):
        return f"jtop's service measures this machine, not the one below {root}."
    return "" if jetson.runs_on_jetson() else NO_JETSON


@contextmanager
def connect_client(interval_s: float, limit_s: float = LIMIT_S, *, to_change: bool = False) -> Iterator[Any]:
    """Connect to jtop's service and yield the client; RuntimeError if it fails, now or later.

    If another client is connected, its sampling period applies instead of `interval_s`. A recorded client reports
    what was recorded; it is refused `to_change` a setting.
    """
    if _replacement is not None:
        if to_change:
            raise machine_error("jtop's service is that of a recorded machine, which has no settings to change")
        _replacement.check()
        yield _replacement
        return
    import multiprocessing

    method = multiprocessing.get_start_method(allow_none=True)
    try:
        import jtop

        client = jtop.jtop(interval=interval_s)
    except ImportError as error:
        hint = "`make jtop` adds it here, `sudo pip3 install jetson-stats` installs the service"
        raise machine_error("jtop's client is not installed", hint) from error
    finally:
        multiprocessing.set_start_method(method, force=True)  # importing jtop sets it to fork
    start_client(client, limit_s)
    try:
        yield client
    except (jtop.JtopException, EOFError, ConnectionError) as error:
        raise MachineError(service_problem(error)) from error
    finally:
        # `close` waits for a thread that detects libraries, which may take seconds.
        threading.Thread(target=client.close, name="jtop closing", daemon=True).start()


def start_client(client: Any, limit_s: float) -> None:
    """Start the client; RuntimeError if it fails or takes longer than `limit_s`."""
    from multiprocessing.managers import BaseProxy

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
        proxy._close.cancel()  # type: ignore[attr-defined]  # private
    if beginning.is_alive():
        raise machine_error(
            f"No answer from jtop's service within {limit_s:g} s", "restart it: sudo systemctl restart jtop"
        )
    if failures:
        raise MachineError(service_problem(failures[0])) from failures[0]


def service_problem(error: Exception) -> Problem:
    """Describe an error of the service in one line."""
    if isinstance(error.__context__, PermissionError):
        return Problem("jtop's service refuses this user", "sudo usermod -aG jtop $USER, then log in again")
    message = " ".join(str(error).split()) or type(error).__name__
    return Problem(f"jtop's service failed: {message}")
