import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from trainmeter.datasets.fetch import fetch

CONTENTS = bytes(range(256)) * 10_000
MD5 = hashlib.md5(CONTENTS).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Gives the file; half of it under /half, with the length of the whole."""

    def do_GET(self):
        self.send_response(200 if self.path in ("/file", "/half") else 404)
        self.send_header("Content-Length", str(len(CONTENTS)))
        self.end_headers()
        if self.path == "/file":
            self.wfile.write(CONTENTS)
        elif self.path == "/half":
            self.wfile.write(CONTENTS[: len(CONTENTS) // 2])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def host():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_comes_whole(host, tmp_path):
    said = []
    fetch(f"{host}/file", tmp_path / "file", MD5, said.append)
    assert (tmp_path / "file").read_bytes() == CONTENTS
    assert said == [f"downloading {host}/file (3 MB)"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_placed_by_hand_is_taken_without_a_network(tmp_path):
    (tmp_path / "file").write_bytes(CONTENTS)
    fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5, print)


def test_a_file_placed_by_hand_that_is_another_is_refused_and_kept(tmp_path):
    (tmp_path / "file").write_bytes(b"another")
    with pytest.raises(ValueError, match=rf"{tmp_path / 'file'} should have the MD5 {MD5} and has .* Remove it"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5, print)
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize("path", ["half", "missing"])
def test_half_a_file_or_none_leaves_nothing(host, tmp_path, path):
    with pytest.raises((ValueError, RuntimeError), match=f"{host}/{path}"):
        fetch(f"{host}/{path}", tmp_path / "file", MD5, print)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_file_to_place_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=rf"place that file as {tmp_path / 'file'}, or use dataset=digits"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5, print)
