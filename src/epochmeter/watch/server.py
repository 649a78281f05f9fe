"""The live view as a page: a web server that reads run folders only.

    /         the page; its HTML has the current state
    /events   server-sent events: the state, and then its changes once per second
    /metrics  the current values for Prometheus, if enabled

Without viewers, nothing is read. The server accepts connections of this machine only, unless an address is configured,
which needs a token.
"""

import hmac
import json
import os
import platform
import re
import secrets
import socket
import socketserver
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from epochmeter.config.errors import InputError, input_error
from epochmeter.results.reuse import READ_ERRORS
from epochmeter.watch.appended import Series
from epochmeter.watch.openmetrics import to_openmetrics
from epochmeter.watch.snapshot import RunView, Snapshot

if TYPE_CHECKING:
    from jinja2 import Template

PERIOD_S = 1.0  # shortest time between two readings of the folder
POLL_S = 0.5  # interval at which a viewer's thread checks for a new reading
TIMEOUT_S = 10.0  # time after which a connection that neither sends nor receives is closed
CORE = re.compile(r"cpu\d+_utilization")
"""Gauges of which the page shows the latest value only."""
LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = (LOOPBACK, "::1", "localhost")
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104  # compared with, not listened at
DEFAULT_PORT, PORTS_TRIED = 8600, 20
PACKAGE = Path(__file__).parents[1]
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address may have a token
    "X-Content-Type-Options": "nosniff",
}
POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page's own script and style, and connections to this server."""


class Feed:
    """The state that a function reads, at most once per `PERIOD_S`, however many threads need it."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read, self._lock = read, threading.Lock()
        self._latest, self._due_s = (read(), ""), time.monotonic() + PERIOD_S

    def latest(self) -> tuple[Snapshot, str]:
        """Return the last state that could be read, and why it cannot be read now: both at most `PERIOD_S` old."""
        with self._lock:
            if time.monotonic() >= self._due_s:
                try:
                    self._latest = self._read(), ""
                except (InputError, *READ_ERRORS) as failure:
                    self._latest = self._latest[0], str(failure) or type(failure).__name__
                self._due_s = time.monotonic() + PERIOD_S
            return self._latest


def changes_since(before: Snapshot, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the samples and the rows of a sweep that an earlier one has."""
    earlier = {view.folder: view for view in before.active}
    active = []
    for view in snapshot.active:
        own = earlier.get(view.folder, replace(view, power={}, gauges={}))
        active.append(replace(view, power=_newer(view.power, own.power), gauges=_newer(view.gauges, own.gauges)))
    rows = {row.number: row for row in before.runs}
    return replace(snapshot, active=active, runs=[row for row in snapshot.runs if row != rows.get(row.number)])


def _newer(series: Mapping[str, Series], earlier: Mapping[str, Series]) -> dict[str, Series]:
    """Return new samples, and those of the last earlier second, whose mean may have changed."""
    cut = {}
    for name, own in series.items():
        first = bisect_left(own.times_s, earlier[name].times_s[-1]) if name in earlier else 0
        cut[name] = replace(own, times_s=own.times_s[first:], values=own.values[first:])
    return cut


def to_json(snapshot: Snapshot, error: str, *, is_full: bool = True) -> str:
    """Return a state, or its changes, as JSON without `<`, to be part of HTML; numbers that are not finite are null."""

    def convert(part: Any) -> object:
        if isinstance(part, Series):
            values = [float(f"{value:.4g}") for value in part.values]  # for lines of 100 pixels
            return {"latest": part.latest, "times_s": [round(time_s, 2) for time_s in part.times_s], "values": values}
        if not isinstance(part, RunView):
            return vars(part)
        cores = {name: Series((), (), own.latest) for name, own in part.gauges.items() if CORE.fullmatch(name)}
        return {**vars(part), "gauges": {**part.gauges, **cores}}

    state = {"is_full": is_full, "error": error, "snapshot": snapshot}
    try:
        text = json.dumps(state, default=convert, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a diverged loss
        finite = json.loads(json.dumps(state, default=convert), parse_constant=lambda name: None)
        text = json.dumps(finite, separators=(",", ":"))
    return text.replace("<", "\\u003c")


class PageServer(ThreadingHTTPServer):
    """A web server that listens, with one thread per request; without a token, it is for requests to loopback."""

    request_queue_size = 64

    def __init__(self, host: str, port: int, feed: Feed, token: str | None, metrics: bool) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.feed, self.token, self.metrics = feed, token, metrics
        super().__init__((host, port), Handler)

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        host = platform.node() if host in ANY_ADDRESS else f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/" + (f"?{urlencode({'token': self.token})}" if self.token else "")

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind looks up a name, which may take seconds

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that broke: a viewer may go away at any time."""


class Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "epochmeter"
    sys_version = ""
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._is_allowed(query):
            self._send(403, TEXT, "refused: open the address that the server printed, with its token if it has one\n")
        elif path == "/":
            nonce = secrets.token_urlsafe(16)
            page = page_template().render(nonce=nonce, state=to_json(*self.server.feed.latest()))
            self._send(200, HTML, page, Content_Security_Policy=POLICY.format(nonce))
        elif path == "/events":
            self._stream()
        elif path == "/metrics" and self.server.metrics:
            snapshot, error = self.server.feed.latest()
            if error:  # so that Prometheus does not take earlier values for present ones
                self._send(503, TEXT, f"the folder cannot be read: {error}\n")
            else:
                self._send(200, OPENMETRICS, to_openmetrics(snapshot))
        else:
            self._send(404, TEXT, "not found; `/metrics` needs metrics=true\n")

    def _is_allowed(self, query: str) -> bool:
        """Return whether the request has the token; without one, whether it is addressed to loopback.

        If a web site makes a browser resolve its name to 127.0.0.1 (DNS rebinding), requests have that name as host.
        """
        if self.server.token is None:
            with suppress(ValueError):
                return urlsplit(f"//{self.headers.get('Host', '')}").hostname in LOOPBACK_NAMES
            return False
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        given = parse_qs(query).get("token", [bearer])[0]
        return hmac.compare_digest(given.encode(errors="replace"), self.server.token.encode())

    def _send(self, status: int, kind: str, text: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **HEADERS, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text.encode(errors="replace"))

    def _stream(self) -> None:
        """Send the state, and then each change, until the viewer disconnects."""
        self._send(200, "text/event-stream; charset=utf-8", "")
        sent: tuple[Snapshot, str] | None = None
        while True:
            latest = self.server.feed.latest()
            if latest is not sent:
                change = changes_since(sent[0], latest[0]) if sent else latest[0]
                data = to_json(change, latest[1], is_full=sent is None)
                self.wfile.write(f"data: {data}\n\n".encode())
                sent = latest
            time.sleep(POLL_S)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing about requests, as their addresses may have the token."""


def serve(server: PageServer, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C, and announce its address."""
    with suppress(OSError):
        os.nice(19)  # the processes that are measured come first
    announce(f"Page: {server.url}")
    host, port = server.server_address[:2]
    if host == LOOPBACK:
        announce(f"hint: from another machine, first `ssh -L {port}:{LOOPBACK}:{port} {platform.node()}`")
    announce("Ctrl-C ends the page; the run continues.")
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


def open_server(
    read: Callable[[], Snapshot],
    host: str | None = None,
    port: int | None = None,
    token: str | None = None,
    metrics: bool = False,
) -> PageServer:
    """Return a server that listens; InputError if the port is in use, or this machine does not have the address.

    By default it listens at loopback and the first free port from `DEFAULT_PORT` on. If `host` is given, each request
    needs the token, by default a random one.
    """
    page_template()  # compiled before the first viewer waits for it
    feed, token = Feed(read), token or (secrets.token_urlsafe(16) if host else None)
    for number in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED) if port is None else [port]:
        try:
            return PageServer(host or LOOPBACK, number, feed, token, metrics)
        except OSError as error:
            refusal = input_error(
                f"cannot listen at port `{number}` of `{host or LOOPBACK}`: {error.strerror}",
                "leave `port=` out for a free one, and `host=` for this machine; `host=0.0.0.0` is all its addresses",
            )
    raise refusal


@lru_cache(maxsize=1)
def page_template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folders = [PACKAGE / "watch/templates", PACKAGE / "report/templates"]
    environment = Environment(loader=FileSystemLoader(folders), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html.j2")
