"""Open a trace in Perfetto, which reads it in the browser; nothing is uploaded."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from epochmeter.report.render import render_notes

ORIGIN = "https://ui.perfetto.dev"
PORT = 9001  # the only port of this machine that Perfetto reads from
WAIT_S = 300.0


def serve_once(path: Path, say: Callable[[str], None], port: int = PORT, wait_s: float = WAIT_S) -> None:
    """Serve a file to Perfetto's page in a browser on this machine until it is read once.

    Raises:
        ValueError: The port is in use.
    """
    sent = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != f"/{path.name}":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", ORIGIN)
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            self.wfile.write(path.read_bytes())
            sent.append(path)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = HTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise ValueError(f"port {port} cannot be used: {error.strerror}\n  hint: open {path} at {ORIGIN}") from error
    with server:
        link = f"{ORIGIN}/#!/?url=http://127.0.0.1:{server.server_port}/{path.name}"
        for note in render_notes("perfetto", link, path, ORIGIN, wait_s):
            say(note)
        webbrowser.open(link)
        server.timeout = wait_s
        server.handle_timeout = lambda: sent.append(path)  # type: ignore[method-assign]
        while not sent:
            server.handle_request()
