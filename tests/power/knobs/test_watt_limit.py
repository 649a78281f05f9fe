"""Power limits in kernel files, and of NVIDIA GPUs through the real client libraries on a stub of NVML."""

import json
import os
import socketserver
import threading
import time
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest
from cases import case, cases
from controls import Board

from epochmeter.power.knobs import knob as settling
from epochmeter.power.knobs.applied_settings import AppliedSettings
from epochmeter.power.knobs.permission import permission
from epochmeter.power.knobs.watt_limit import open_amd_cap, open_nvml_limit, open_rapl_limit

LIMIT = "sys/class/powercap/{}/constraint_1_power_limit_uw"
CAP = "sys/class/drm/card{}/device/hwmon/hwmon4/power1_cap"
RADEON, MI250X = "0x744c", "0x7408"
GPUS = ["GPU-aaaa", "GPU-bbbb"]


def test_only_long_term_limits_are_changed_and_restored_to_the_microwatt(board):
    board.with_rapl().put(**{LIMIT.format("intel-rapl:1"): 94_999_877})
    before = {file: file.read_text() for file in board.root.rglob("*_uw")}
    knob = open_rapl_limit(board.root)
    original = knob.get()
    knob.set("65 W")
    after = {file: file.read_text().strip() for file in before if file.read_text() != before[file]}
    assert after == {board.root / LIMIT.format(f"intel-rapl:{package}"): "65000000" for package in (0, 1)}
    knob.set(original)
    assert original == knob.get() == "95 W, 94.999877 W"
    assert board.read(LIMIT.format("intel-rapl:1")) == "94999877"


@pytest.mark.parametrize(("rounding", "is_accepted"), [(1.009, True), (0.991, True), (1.011, False), (0.989, False)])
def test_rounding_by_one_percent_is_accepted(board, monkeypatch, rounding, is_accepted):
    monkeypatch.setattr(settling, "SETTLE_LIMIT_S", 0.1)
    knob = open_rapl_limit(board.with_rapl(packages=1).root)
    write = type(board.root).write_text
    rounded = lambda file, text: write(file, str(round(int(text) * rounding)))  # noqa: E731
    monkeypatch.setattr(type(board.root), "write_text", rounded)
    with nullcontext() if is_accepted else pytest.raises(RuntimeError, match=r"65 W: the device is at 6[45]\.\d+ W\."):
        knob.set("65 W")


def test_limit_that_is_switched_off_is_an_error_with_the_switch(board):
    board.with_rapl().put(**{"sys/class/powercap/intel-rapl:0/enabled": 0})
    with pytest.raises(RuntimeError, match=r"switched off: (\S+) is 0\n  hint: echo 1 \| sudo tee \1$"):
        open_rapl_limit(board.root).target_for(65)
    assert board.read(LIMIT.format("intel-rapl:0")) == "95000000"


@cases(
    case(bounds={}, choices="up to 120 W (lowest limit unknown)", valid=5, invalid=150),
    case(bounds={"min": 15_000_000}, choices="15 to 120 W", valid=15, invalid=14.5),
    case(bounds={"min": 15_000_000, "max": 0}, choices="15 W and more", valid=500, invalid=14),
    case(bounds={"max": "garbage"}, choices="watts (lowest limit unknown)", valid=500, invalid="15W"),
)
def test_range_is_that_of_the_kernel_as_far_as_it_is_known(board, bounds, choices, valid, invalid):
    board.with_rapl(packages=1)
    board.put(**{f"sys/class/powercap/intel-rapl:0/constraint_1_{name}_power_uw": uw for name, uw in bounds.items()})
    knob = open_rapl_limit(board.root)
    highest = None if "max" in bounds else 120
    assert (knob.choices(), knob.target_for(valid)[1:]) == (choices, (valid, None, highest))
    with pytest.raises(ValueError, match=rf"power_limit={invalid} is .*\n  hint: .*{choices.partition('(')[0]}"):
        knob.target_for(invalid)


def test_kernel_file_of_root_is_written_by_sudo(open_folder, monkeypatch):
    board = Board(open_folder).with_rapl(packages=1)
    monkeypatch.setenv("PATH", board.on_path())
    board.root.joinpath(LIMIT.format("intel-rapl:0")).chmod(0o444)
    knob = open_rapl_limit(board.root)
    uid = os.getuid()
    try:
        if uid == 0:
            os.seteuid(65534)
        knob.set("65 W")
    finally:
        os.seteuid(uid)
    assert knob.get() == "65 W"


@pytest.mark.parametrize(("device", "used", "limited"), [(RADEON, [1], 1), (MI250X, [1], 0), (MI250X, [0, 1], 0)])
def test_only_the_gpus_used_are_limited_and_a_dual_board_by_its_first_die(board, device, used, limited):
    buses = ["0000:c1:00.0", "0000:c6:00.0"]
    board.with_amdgpu(buses[0], device).with_amdgpu(buses[1], device)
    knob = open_amd_cap([buses[die] for die in used], board.root)
    knob.set("200 W")
    assert (knob.devices, knob.choices()) == ([buses[limited]], "up to 303 W (lowest limit unknown)")
    limits = ["200000000" if die == limited else "250000000" for die in (0, 1)]
    assert [board.read(CAP.format(die)) for die in (0, 1)] == limits


@pytest.mark.parametrize("buses", [[], ["0000:83:00.0"], ["0000:03:00.0", "0000:83:00.0"]])
def test_gpus_without_a_limit_have_no_knob(board, buses):
    board.with_amdgpu("0000:03:00.0")
    assert open_amd_cap(buses, board.root) is None


def test_unreadable_gpu_is_an_error(nvml, monkeypatch):
    for gpus, stub, reason in (
        (["GPU-cccc"], "", r"power limit of GPU-cccc: .*Not Found"),
        (GPUS, "silent", "Driver Not Loaded"),
    ):
        monkeypatch.setenv("STUB", stub)
        with pytest.raises(RuntimeError, match=reason):
            open_nvml_limit(gpus)


@pytest.mark.parametrize(
    ("stub", "applied", "end"),
    [
        ("late", [{"NVML": "150 W"}], nullcontext()),
        ("late,only0", [], pytest.raises(RuntimeError, match=r"GPU-bbbb to 150 W: .*Insufficient Permissions")),
    ],
    ids=["applied", "refused by one GPU"],
)
def test_late_limit_is_waited_for_and_restored(nvml, monkeypatch, journal, stub, applied, end):
    monkeypatch.setenv("STUB", stub)
    knob, holdings = open_nvml_limit(GPUS), []
    assert (knob.choices(), knob.target_for(162.5)) == ("100 to 300 W", ("162.5 W", 162.5, None, 300))
    with end, AppliedSettings([(knob, knob.target_for(150))], journal, pytest.fail) as holding:
        holdings.append(holding.applied)
    assert (holdings, journal.unrestored()) == (applied, [])
    time.sleep(0.3)
    assert knob.get() == "250 W"


class Daemon(BaseHTTPRequestHandler):
    """The part of zeusd that sets a limit."""

    limit_file = refusal = None
    groups, gpus = ("gpu-read", "gpu-control"), 2

    def do_GET(self):
        devices = {
            "gpus": [{"id": i, "name": "Stub GPU"} for i in range(self.gpus)],
            "cpus": [],
            "auth_required": False,
        }
        self.reply({**devices, "enabled_api_groups": self.groups})

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


def test_ordinary_user_sets_the_limit_by_zeusd_whose_refusal_is_an_error(nvml, tmp_path, open_folder, monkeypatch):
    monkeypatch.setenv("STUB", "nopermission")
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd"))
    monkeypatch.setattr(Daemon, "limit_file", open_folder / "limit")
    knob = open_nvml_limit(["GPU-aaaa"])
    with socketserver.UnixStreamServer(str(tmp_path / "zeusd"), Daemon) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert permission(knob) == ("by zeusd", None)
        knob.set("150 W")
        assert knob.get() == "150 W"
        with monkeypatch.context() as patch:
            patch.setattr(Daemon, "groups", ["gpu-read"])
            remedy = "start zeusd with gpu-control on the host (zeusd: it was started without gpu-control)"
            assert permission(knob) == ("", remedy)
        with monkeypatch.context() as patch:
            patch.setattr(Daemon, "gpus", 3)  # as on the host of a container with two of its GPUs
            with pytest.raises(RuntimeError, match=r"GPU-aaaa to 200 W: zeusd has 3 GPUs, .* access to 2 "):
                knob.set("200 W")
            patch.setattr(Daemon, "do_GET", lambda daemon: daemon.reply({"gpus": None}))
            with pytest.raises(RuntimeError, match=r"GPU-aaaa to 200 W: zeusd: .*not iterable"):
                knob.set("200 W")
        monkeypatch.setattr(Daemon, "refusal", {"error": "the token lacks gpu-control"})
        with pytest.raises(RuntimeError, match=r"GPU-aaaa to 200 W: zeusd: .*the token lacks gpu-control"):
            knob.set("200 W")
        server.shutdown()
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="zeusd: Cannot reach"):
        knob.set("200 W")
    assert "(zeusd: Cannot reach" in permission(knob)[1]
    assert knob.get() == "150 W"
