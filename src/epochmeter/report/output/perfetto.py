"""Open a run's timeline in Perfetto's page, without an upload."""

import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from epochmeter.report.render import phrase
from epochmeter.shared.problem import input_error

ORIGIN = "https://ui.perfetto.dev"
PORT = 9001  # the only port of this machine that Perfetto reads from
WAIT_S = 300.0


def open_in_perfetto(path: Path, show: Callable[[str], None], port: int = PORT, wait_s: float = WAIT_S) -> None:
    """Open Perfetto in a browser, and serve a file to it until it is read once or the time is over.

    Raises:
        ValueError: The port is in use.
    """
    has_ended: list[bool] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != f"/{path.name}":
                self.send_error(404)
                return
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Access-Control-Allow-Origin", ORIGIN)
            self.end_headers()
            self.wfile.write(content)
            has_ended.append(True)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = HTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise input_error(f"port {port} cannot be used: {error.strerror}", f"open {path} at {ORIGIN}") from error
    with server:
        link = f"{ORIGIN}/#!/?url=http://127.0.0.1:{server.server_port}/{path.name}"
        show(phrase("timeline", link=link, path=path, origin=ORIGIN))
        show(phrase("timeline_end", wait_s=wait_s))
        webbrowser.open(link)
        server.timeout = wait_s
        server.handle_timeout = lambda: has_ended.append(True)  # type: ignore[method-assign]  # to be replaced
        while not has_ended:
            server.handle_request()
