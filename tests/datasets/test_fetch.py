import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from epochmeter.datasets.fetch import fetch

CONTENTS = bytes(range(256)) * 10_000
HALF = len(CONTENTS) // 2
MD5 = hashlib.md5(CONTENTS).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serves the file; breaks off half-way under /half."""

    def do_GET(self):
        exists = self.path in ("/file", "/half")
        self.send_response(200 if exists else 404)
        self.send_header("Content-Length", str(len(CONTENTS)))
        self.end_headers()
        if exists:
            self.wfile.write(CONTENTS[: HALF if self.path == "/half" else None])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def host():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_existing_file_needs_no_network_and_is_verified(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(CONTENTS)
    fetch("http://127.0.0.1:9/file", file, MD5, print)
    file.write_bytes(b"another")
    fetch("http://127.0.0.1:9/file", file, None, print)
    with pytest.raises(
        ValueError, match=rf"{file} has the MD5 .* instead of {MD5}\n  hint: .* dataset\.make\.md5\.train="
    ):
        fetch("http://127.0.0.1:9/file", file, MD5, print, key="md5.train")
    with pytest.raises(ValueError, match="MD5"):
        fetch("http://127.0.0.1:9/file", file, "", print)
    assert file.exists()


def test_wrong_download_leaves_nothing_and_a_full_disk_is_no_network_error(host, tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=rf"cannot download {host}/half: .* broke after {HALF} of 2560000"):
        fetch(f"{host}/half", tmp_path / "file", None, print)
    with pytest.raises(ValueError, match=rf"has the MD5 .*\n  hint: .* {host}/file returned another file"):
        fetch(f"{host}/file", tmp_path / "file", MD5[::-1], print)
    assert os.listdir(tmp_path) == [".file.lock"]
    (tmp_path / ".file.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        fetch(f"{host}/file", tmp_path / "file", MD5, print)
    sizes = []  # of the file that is flushed to disk
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    fetch(f"{host}/file", tmp_path / "file", MD5, print)
    assert ((tmp_path / "file").read_bytes(), sizes) == (CONTENTS, [len(CONTENTS)])
    assert sorted(os.listdir(tmp_path)) == [".file.lock", "file"]


def test_failed_request_names_the_target_path(host, tmp_path):
    for url, reason in ((f"{host}/missing", "HTTP Error 404"), ("http://127.0.0.1:9/file", "refused")):
        with pytest.raises(
            RuntimeError, match=rf"cannot download {url}: .*{reason}.*\n  hint: .* file at {tmp_path}/file,"
        ):
            fetch(url, tmp_path / "file", MD5, print)
