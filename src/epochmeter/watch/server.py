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
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from epochmeter.console.sentences import account_line
from epochmeter.report.formatting import metric_title
from epochmeter.results.account import GROUPS, grouped
from epochmeter.results.metrics import CORE, find, shown_in
from epochmeter.results.quantities import UNITS
from epochmeter.results.run_folder import READ_ERRORS
from epochmeter.shared.problem import InputError, format_problem, input_error
from epochmeter.shared.units import MIN_WHOLE_PERCENT
from epochmeter.watch.appended import Series
from epochmeter.watch.gauges import panels_of
from epochmeter.watch.openmetrics import to_openmetrics
from epochmeter.watch.snapshot import ACTIVE, ROW_METRICS, RunView, Snapshot

if TYPE_CHECKING:
    from jinja2 import Template

PERIOD_S = 1.0  # shortest time between two readings of the folder
POLL_S = 0.5  # interval at which a viewer's thread checks for a new reading
TIMEOUT_S = 10.0  # time after which a connection that neither sends nor receives is closed
MAX_CONNECTIONS = 128  # each has a thread; one more closes the connection that is the most overdue
VIEWER_S = 3.0  # time after an event in which a viewer is not overdue: several periods
MAX_REQUEST_BYTES = 1 << 16  # longest request with its headers
PARTS = ("compute", "data_stall", "copy", "overhead")
"""Parts of an epoch in the order of the page's legend."""
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
        self._read, self._lock = read, threading.RLock()
        self._latest, self._due_s = (read(), ""), time.monotonic() + PERIOD_S
        self._changes: dict[int, tuple[object, str]] = {}  # from an earlier state, by its id, to the latest

    def latest(self) -> tuple[Snapshot, str]:
        """Return the last state that could be read, and why it cannot be read now: both at most `PERIOD_S` old."""
        with self._lock:
            if time.monotonic() >= self._due_s:
                try:
                    self._latest = self._read(), ""
                except (InputError, *READ_ERRORS) as failure:
                    self._latest = self._latest[0], str(failure) or type(failure).__name__
                self._changes.clear()
                self._due_s = time.monotonic() + PERIOD_S
            return self._latest

    def changed_since(self, sent: tuple[Snapshot, str] | None) -> tuple[tuple[Snapshot, str], str]:
        """Return the state as `latest`, and its changes as JSON since the one that a viewer has; None: it has none.

        Most viewers have the same state, for whom the changes are found and written once.
        """
        with self._lock:
            latest = self.latest()
            if id(sent) not in self._changes:
                change = changes_since(sent[0], latest[0]) if sent else latest[0]
                self._changes[id(sent)] = sent, to_json(change, latest[1], is_full=sent is None)
            return latest, self._changes[id(sent)][1]


def changes_since(before: Snapshot, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without the samples and the rows of a sweep that an earlier one has."""
    earlier = {view.folder: view for view in before.active}
    active = []
    for view in snapshot.active:
        earlier_view = earlier.get(view.folder, replace(view, power={}, gauges={}))
        active.append(
            replace(view, power=_newer(view.power, earlier_view.power), gauges=_newer(view.gauges, earlier_view.gauges))
        )
    rows = {row.number: row for row in before.runs}
    return replace(snapshot, active=active, runs=[row for row in snapshot.runs if row != rows.get(row.number)])


def _newer(series: Mapping[str, Series], earlier: Mapping[str, Series]) -> dict[str, Series]:
    """Return new samples, and those of the last earlier second, whose mean may have changed."""
    cut = {}
    for name, samples in series.items():
        first = bisect_left(samples.times_s, earlier[name].times_s[-1]) if name in earlier else 0
        cut[name] = replace(samples, times_s=samples.times_s[first:], values=samples.values[first:])
    return cut


def to_json(snapshot: Snapshot, error: str, *, is_full: bool = True) -> str:
    """Return a state, or its changes, as JSON without `<`, to be part of HTML; numbers that are not finite are null."""

    def convert(item: Any) -> object:
        if isinstance(item, Series):
            values = [float(f"{value:.4g}") for value in item.values]  # for lines of 100 pixels
            return {"latest": item.latest, "times_s": [round(time_s, 2) for time_s in item.times_s], "values": values}
        if not isinstance(item, RunView):
            return vars(item)
        cores = {name: Series((), (), series.latest) for name, series in item.gauges.items() if CORE.fullmatch(name)}
        failure = format_problem(item.failure) if item.failure else ""
        groups = grouped(item.account)
        account = [(name, groups[name]) for name in GROUPS if groups]
        shown = {"failure": failure, "account": account, "account_text": account_line(item.account)}
        return {**vars(item), **shown, "gauges": {**item.gauges, **cores}, "panels": [*panels_of(item)]}

    state = {"is_full": is_full, "error": error, "snapshot": snapshot}
    try:
        text = json.dumps(state, default=convert, allow_nan=False, separators=(",", ":"))
    except ValueError:  # a diverged loss
        finite = json.loads(json.dumps(state, default=convert), parse_constant=lambda name: None)
        text = json.dumps(finite, separators=(",", ":"))
    return text.replace("<", "\\u003c")


@lru_cache(maxsize=1)
def metric_table() -> str:
    """Return titles and units of what the page shows, rules for numbers, and active states, as JSON for HTML."""

    def row(name: str, key: str) -> tuple[str, str, str]:
        return metric_title(name), key, find(name).symbol

    shown = [find(name) for name in shown_in("page")]
    of_epochs = [metric for metric in shown if metric.section == "epoch"]
    table = {
        "parts": {part: find(f"epoch/{part}_s").short for part in PARTS},
        "figures": [(*row(each.name, each.name.removeprefix("epoch/")), each.decimals) for each in of_epochs],
        "totals": [row(each.name, each.name) for each in shown if each not in of_epochs],
        "columns": [row(metric, name) for name, metric in ROW_METRICS.items()],
        "units": UNITS,
        "whole_percent": MIN_WHOLE_PERCENT,
        "active": ACTIVE,
    }
    return json.dumps(table, separators=(",", ":")).replace("<", "\\u003c")


class PageServer(ThreadingHTTPServer):
    """A web server that listens, with one thread per connection; without a token, it is for requests to loopback.

    Slow clients cannot keep others out: a new connection closes the oldest one that is not of a reading viewer.
    """

    request_queue_size = 64

    def __init__(self, host: str, port: int, feed: Feed, token: str | None, metrics: bool) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.feed, self.token, self.metrics = feed, token, metrics
        self._due_s: dict[socket.socket, float] = {}  # connection -> time from which it is overdue
        self._lock = threading.Lock()
        super().__init__((host, port), Handler)

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        host = platform.node() if host in ANY_ADDRESS else f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/" + (f"?{urlencode({'token': self.token})}" if self.token else "")

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind looks up a name, which may take seconds

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._due_s) >= MAX_CONNECTIONS:
                overdue = min(self._due_s, key=self._due_s.__getitem__)
                del self._due_s[overdue]
                with suppress(OSError):
                    overdue.shutdown(socket.SHUT_RDWR)  # its thread then ends, and closes it
            self._due_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._due_s.pop(request, None)
        super().shutdown_request(request)

    def note_event(self, request: socket.socket) -> None:
        """Note that a viewer has been sent an event."""
        with self._lock:
            if request in self._due_s:
                self._due_s[request] = time.monotonic() + VIEWER_S

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore connections that broke: a viewer may go away at any time."""


class BoundedReader(BufferedIOBase):
    """Reads the lines of a request, up to `MAX_REQUEST_BYTES` in total; after these, the request is at its end."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._left = file, MAX_REQUEST_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        line = self._file.readline(min(size, self._left) if size and size > 0 else self._left)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "epochmeter"
    sys_version = ""
    timeout = TIMEOUT_S

    def setup(self) -> None:
        super().setup()
        self.rfile = BoundedReader(self.rfile)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._is_allowed(query):
            self._send(403, TEXT, "refused: open the address that the server printed, with its token if it has one\n")
        elif path == "/":
            nonce = secrets.token_urlsafe(16)
            state = to_json(*self.server.feed.latest())
            page = page_template().render(nonce=nonce, state=state, table=metric_table())
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
        scheme, _, credentials = self.headers.get("Authorization", "").partition(" ")
        bearer = credentials.strip() if scheme.lower() == "bearer" else ""  # RFC 9110: schemes ignore case
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
            if self.server.feed.latest() is not sent:
                sent, data = self.server.feed.changed_since(sent)
                self.wfile.write(f"data: {data}\n\n".encode())
                self.server.note_event(self.connection)
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
        announce(f"From another machine, first `ssh -L {port}:{LOOPBACK}:{port} {platform.node()}`")
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
