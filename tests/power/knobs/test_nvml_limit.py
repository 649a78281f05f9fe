"""The power limit of NVIDIA GPUs, through zeus and the real client library on a stub of NVML."""

import json
import socketserver
import threading
import time
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest

from epochmeter.power.knobs.knob import AppliedSettings
from epochmeter.power.knobs.nvml_limit import open_nvml_limit

pytestmark = pytest.mark.usefixtures("nvml")
GPUS = ["GPU-aaaa", "GPU-bbbb"]


def test_range_is_that_of_the_gpus():
    knob = open_nvml_limit(GPUS)
    assert knob.choices() == "100 to 300 W"
    assert [knob.target_for(watts).setting for watts in (100, 162.5, 300)] == ["100 W", "162.5 W", "300 W"]
    assert knob.target_for(162.5)[1:] == (162.5, None, 300)
    for watts in (99, 300.5):
        with pytest.raises(ValueError, match=rf"power_limit={watts} is out of the range of NVML: 100 to 300 W"):
            knob.target_for(watts)


@pytest.mark.parametrize(
    ("gpus", "stub", "said"),
    [(["GPU-cccc"], "", r"power limit of GPU-cccc: .*Not Found"), (GPUS, "silent", "Driver Not Loaded")],
)
def test_unreadable_gpu_is_an_error(monkeypatch, gpus, stub, said):
    monkeypatch.setenv("STUB", stub)
    with pytest.raises(RuntimeError, match=said):
        open_nvml_limit(gpus)


@pytest.mark.parametrize(
    ("stub", "applied", "end"),
    [
        ("late", [{"NVML": "150 W"}], nullcontext()),
        ("late,only0", [], pytest.raises(RuntimeError, match=r"GPU-bbbb to 150 W: .*Insufficient Permissions")),
    ],
    ids=["applied", "refused by one GPU"],
)
def test_late_limit_is_waited_for_and_restored(monkeypatch, journal, stub, applied, end):
    monkeypatch.setenv("STUB", stub)
    knob, holdings = open_nvml_limit(GPUS), []
    with end, AppliedSettings([(knob, knob.target_for(150))], journal, pytest.fail) as holding:
        holdings.append(holding.applied)
    assert (holdings, journal.unrestored()) == (applied, [])
    time.sleep(0.3)
    assert knob.get() == "250 W"


class Daemon(BaseHTTPRequestHandler):
    """The part of zeusd that sets a limit."""

    limit_file = refusal = None

    def do_GET(self):
        devices = {"gpus": [{"id": 0, "name": "stub"}], "cpus": [], "auth_required": False}
        self.reply({**devices, "enabled_api_groups": ["gpu-read", "gpu-control"]})

    def do_POST(self):
        if self.refusal:
            self.reply(self.refusal, "403 Forbidden")
            return
        query = parse_qs(urlsplit(self.path).query)
        self.limit_file.write_text(query["power_limit_mw"][0])
        self.reply({})

    def reply(self, content, status="200 OK"):
        body = json.dumps(content)
        self.wfile.write(f"HTTP/1.0 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


@pytest.fixture
def zeusd(tmp_path, open_folder, monkeypatch):
    """The service, for a user who may not set the limit directly."""
    monkeypatch.setenv("STUB", "nopermission")
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd"))
    monkeypatch.setattr(Daemon, "limit_file", open_folder / "limit")
    with socketserver.UnixStreamServer(str(tmp_path / "zeusd"), Daemon) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield
        server.shutdown()


def test_ordinary_user_sets_the_limit_by_zeusd(zeusd):
    knob = open_nvml_limit(["GPU-aaaa"])
    knob.set("150 W")
    assert knob.get() == "150 W"


def test_refusal_by_zeusd_is_an_error_with_its_reason(zeusd, tmp_path, monkeypatch):
    monkeypatch.setattr(Daemon, "refusal", {"error": "the token lacks gpu-control"})
    knob = open_nvml_limit(["GPU-aaaa"])
    with pytest.raises(RuntimeError, match=r"GPU-aaaa to 150 W: zeusd: .*the token lacks gpu-control"):
        knob.set("150 W")
    assert knob.get() == "250 W"
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="zeusd: Cannot reach"):
        knob.set("150 W")
