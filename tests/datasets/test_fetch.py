import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from epochmeter.datasets.fetch import fetch

CONTENTS = bytes(range(256)) * 10_000
HALF = len(CONTENTS) // 2
MD5 = hashlib.md5(CONTENTS).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Gives the file, from where it is asked to; breaks off half-way under /half; knows no ranges under /whole."""

    asked: list[tuple[str, str | None]] = []  # noqa: RUF012

    def do_GET(self):
        wanted = self.headers["Range"]
        self.asked.append((self.path, wanted))
        begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.path != "/whole" else 0
        if begin >= len(CONTENTS):
            self.send_response(416)
            self.end_headers()
            return
        known = self.path in ("/file", "/half", "/whole")
        self.send_response((206 if begin else 200) if known else 404)
        self.send_header("Content-Length", str(len(CONTENTS) - begin))
        self.end_headers()
        if known:
            self.wfile.write(CONTENTS[begin : HALF if self.path == "/half" else None])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def host():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_file_is_downloaded(host, tmp_path):
    said = []
    fetch(f"{host}/file", tmp_path / "file", MD5, said.append)
    assert (tmp_path / "file").read_bytes() == CONTENTS
    assert said == [f"downloading {host}/file (3 MB)"]
    assert names(tmp_path) == {"file", ".file.lock"}


def test_existing_file_needs_no_network(tmp_path):
    (tmp_path / "file").write_bytes(CONTENTS)
    fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5, print)


def test_existing_file_with_another_checksum_is_rejected_and_kept(tmp_path):
    (tmp_path / "file").write_bytes(b"another")
    with pytest.raises(ValueError, match=rf"{tmp_path / 'file'} has the MD5 .* instead of {MD5}"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5, print)
    assert (tmp_path / "file").exists()


def test_checksum_error_names_the_key_and_no_checksum_accepts_any_file(tmp_path):
    (tmp_path / "file").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"dataset\.make\.md5\.train="):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5, print, key="md5.train")
    fetch("http://127.0.0.1:9/file", tmp_path / "file", None, print)


def test_broken_download_is_resumed(host, tmp_path):
    said = []
    with pytest.raises(
        RuntimeError, match=rf"cannot download {host}/half: the connection broke after {HALF} of 2560000"
    ):
        fetch(f"{host}/half", tmp_path / "file", MD5, said.append)
    assert names(tmp_path) == {".file.lock", ".file.partial"}
    fetch(f"{host}/file", tmp_path / "file", MD5, said.append)
    assert Server.asked[-1] == ("/file", f"bytes={HALF}-")
    assert said[-1] == f"downloading {host}/file (3 MB), resumed at 1 MB"
    assert (tmp_path / "file").read_bytes() == CONTENTS
    assert names(tmp_path) == {"file", ".file.lock"}


@pytest.mark.parametrize(("path", "there"), [("whole", CONTENTS[:HALF]), ("file", CONTENTS + b"more")])
def test_download_restarts_if_it_cannot_be_resumed(host, tmp_path, path, there):
    (tmp_path / ".file.partial").write_bytes(there)
    fetch(f"{host}/{path}", tmp_path / "file", MD5, print)
    assert (tmp_path / "file").read_bytes() == CONTENTS


def test_wrong_download_leaves_no_partial_file(host, tmp_path):
    (tmp_path / ".file.partial").write_bytes(b"of an older file")
    with pytest.raises(ValueError, match=rf"{tmp_path / 'file'} has the MD5 .* {host}/file returned another file"):
        fetch(f"{host}/file", tmp_path / "file", MD5, print)
    assert names(tmp_path) == {".file.lock"}


def test_full_disk_is_not_a_network_error(host, tmp_path):
    (tmp_path / ".file.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        fetch(f"{host}/file", tmp_path / "file", MD5, print)


def test_missing_file_leaves_nothing(host, tmp_path):
    with pytest.raises(RuntimeError, match=f"cannot download {host}/missing: HTTP Error 404"):
        fetch(f"{host}/missing", tmp_path / "file", MD5, print)
    assert names(tmp_path) == {".file.lock"}


def test_error_without_network_names_the_target_path(tmp_path):
    with pytest.raises(RuntimeError, match=rf"put the file at {tmp_path / 'file'}, or use dataset=digits"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", MD5, print)
