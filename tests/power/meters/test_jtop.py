import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from epochmeter.power.meters.jtop import complaint, open_jtop

SERVICE = Path(__file__).parents[1] / "jtop_service.py"
SOURCE = Path(__file__).parents[3] / "src"
CLIENT = find_spec("jtop")
PERIOD_S = 0.15
LIMIT_S = 20

METERED = """
import json, logging, os, signal, sys, time
import jtop.service
from epochmeter.power.meters.jtop import open_jtop

jtop.service.JTOP_PIPE, pid, options, fault = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
said = []
logging.getLogger("epochmeter.power.meters.jtop").addFilter(lambda record: said.append(record.getMessage()))
meter = open_jtop(gpus=[], root="/", **options)
if meter.domains:
    before, opened_ns = meter.read(), time.monotonic_ns()
    if fault:
        os.kill(pid, getattr(signal, fault))
    time.sleep(0.8)
    after, closed_ns = meter.read(), time.monotonic_ns()
    used_w = {name: (after[name] - before[name]) * 1e9 / (closed_ns - opened_ns) for name in after}
    sampling, powers = meter.sampling(opened_ns, closed_ns), meter.drain(closed_ns)
    since_boot_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()) / 1e9
    told = {
        "watts": used_w,
        "total_w": meter.total(used_w),
        "lost": sampling.lost,
        "said": said,
        "half_width_j": sampling.half_width_j,
        "samples": [(ns / 1e9 + since_boot_s, w) for ns, w in zip(powers.times_ns, next(iter(powers.watts.values())))],
    }
else:
    told = {}
meter.close()
print(json.dumps({"energy": meter.energy, "domains": meter.domains, **told}))
"""

CONNECTED = """
import multiprocessing, sys
from epochmeter.power.meters.jtop import connected

if sys.argv[2] == "no client":
    sys.modules["jtop"] = None
elif sys.argv[2]:
    import jtop.service
    jtop.service.JTOP_PIPE = sys.argv[2]
multiprocessing.set_start_method(sys.argv[1] or None, force=True)
try:
    with connected(0.1, limit_s=0.5):
        print("connected")
except RuntimeError as error:
    print(error)
print(multiprocessing.get_start_method(allow_none=True))
"""

AGX_ORIN = {
    "rail": {
        "VDD_GPU_SOC": {"power": 8000, "avg": 99999},
        "VDD_CPU_CV": {"power": 3000, "avg": 99999},
        "VIN_SYS_5V0": {"power": 4000, "avg": 99999},
        "VDDQ_VDD2_1V8AO": {"power": 1000, "avg": 99999},
    },
    "tot": {"power": 16000, "avg": 99999},
}
AGX_ORIN_TOTAL = ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"]
ORIN_NANO = {
    "rail": {"VDD_CPU_GPU_CV": {"power": 2000}, "VDD_SOC": {"power": 1500}},
    "tot": {"name": "VDD_IN", "power": 6500},
}


def python(*command):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.check_output([sys.executable, *command], text=True, env=environment, timeout=LIMIT_S)


@pytest.fixture
def service(tmp_path):
    """service({...}) -> the socket and the process of a service that plays the script."""
    if not CLIENT:
        pytest.skip("no jetson-stats in this environment")
    started = []

    def start(script):
        command = [sys.executable, SERVICE, tmp_path / "jtop.sock", json.dumps({"interval_s": PERIOD_S, **script})]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        return str(tmp_path / "jtop.sock"), str(started[-1].pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def metered(service):
    """metered("SIGKILL", script={...}) -> what the meter says of a second in which that befalls the service."""

    def run(fault="", *, script, **options):
        options = json.dumps({"period_s": PERIOD_S, **options})
        return json.loads(python("-c", METERED, *service(script), options, fault))

    return run


def test_on_an_agx_orin_the_total_is_of_the_rails_in_its_table_and_not_the_services(metered):
    told = metered(script={"power": AGX_ORIN}, rails={"total": AGX_ORIN_TOTAL, "gpu": "VDD_GPU_SOC"})
    assert told["total_w"] == pytest.approx(15, rel=0.01)
    assert told["watts"] == {
        name: pytest.approx(rail["power"] / 1000, rel=0.01) for name, rail in AGX_ORIN["rail"].items()
    }
    assert told["domains"]["VDD_GPU_SOC"][:3] == ["sampled", PERIOD_S, "gpu"]
    covers = {"covers": "module", "domains": AGX_ORIN_TOTAL}
    assert told["energy"] == {"source": "sampled", **covers, "reason": None}


def test_the_rail_that_the_service_takes_for_its_total_is_a_rail_again(metered):
    told = metered(script={"power": ORIN_NANO}, rails={"total": ["VDD_IN"]})
    assert told["total_w"] == pytest.approx(6.5, rel=0.01)
    assert set(told["watts"]) == {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"}


def test_without_a_table_a_rule_makes_the_total_and_says_so(metered):
    told = metered(script={"power": ORIN_NANO})
    assert told["total_w"] == pytest.approx(6.5, rel=0.01)
    assert "VDD_IN is taken for the module" in told["energy"]["reason"]


def test_a_sample_stands_at_the_moment_at_which_the_service_took_it(metered):
    # The script's watts are the seconds since the start, and are told 0.1 s after.
    told = metered(script={"late_s": 0.1, "interval_s": 0.2}, period_s=0.2)
    assert len(told["samples"]) >= 2
    for uptime_s, watts in told["samples"]:
        assert watts == pytest.approx(uptime_s % 1000, abs=0.02)


def test_what_the_service_tells_late_and_for_as_long_as_it_likes_is_in_the_uncertainty(metered):
    """The script's watts rise by 2 a second, in a straight line: by at least 0.8 within the second."""
    told = metered(script={"interval_s": 0.2}, period_s=0.2)
    assert told["half_width_j"] >= (0.2 + 0.2 / 2) * 0.8


def test_where_another_client_asked_for_fewer_samples_they_are_fewer_and_none_is_taken_twice(metered):
    told = metered(script={"every": 4, "interval_s": 0.2})
    assert told["domains"]["VDD_SOC"][1] == 0.2
    assert len(told["samples"]) <= 8
    assert all(after[0] - before[0] > 0.1 for before, after in pairwise(told["samples"]))


@pytest.mark.parametrize(
    ("fault", "script", "why"),
    [
        ("SIGKILL", {}, "jtop's service cannot be used: "),
        ("SIGSTOP", {}, "jtop's service gives no new sample"),
        ("", {"last": 0}, "jtop's service gives no new sample"),
    ],
    ids=["dies", "hangs", "stalls"],
)
def test_a_service_that_fails_in_mid_run_is_told_once_and_its_stretch_has_no_energy(metered, fault, script, why):
    told = metered(fault, script={"power": ORIN_NANO, **script})
    assert told["watts"] == {}
    assert told["total_w"] is None
    assert set(told["lost"]) == {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"}
    assert [lost for lost in told["lost"].values() if why not in lost] == []
    (said,) = told["said"]
    assert said.startswith(f"The board's power cannot be read any more: {why}")


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        (
            {"version": "4.2.1"},
            {},
            "jtop's service cannot be used: Mismatch version jtop service: [4.2.1] and client: [",
        ),
        ({"power": {}}, {}, "jtop's service finds no power sensor on this board."),
        (
            {"power": ORIN_NANO},
            {"rails": {"total": ["POM_5V_IN"]}},
            "jtop's service tells nothing of POM_5V_IN, of which the total is made: "
            "found VDD_CPU_GPU_CV, VDD_SOC, VDD_IN.",
        ),
    ],
    ids=["of another version", "no sensor", "another board"],
)
def test_a_service_that_is_no_meter_is_absent_with_the_reason(metered, script, options, reason):
    energy = metered(script=script, **options)["energy"]
    assert energy["source"] == "none"
    assert energy["reason"].startswith(reason)


def test_a_service_that_answers_nobody_is_given_up(service):
    socket, _ = service({"deaf": True})
    said, _ = python("-c", CONNECTED, "", socket).splitlines()
    assert said == "jtop's service is silent for 0.5 s. Start it anew: sudo systemctl restart jtop"


@pytest.mark.parametrize("method", ["", "spawn"])
def test_the_start_method_of_multiprocessing_outlives_jtops_import_and_its_client(service, method):
    socket, _ = service({"power": ORIN_NANO})
    assert python("-c", CONNECTED, method, "").splitlines()[-1] == (method or "None")
    assert python("-c", CONNECTED, method, socket).splitlines() == ["connected", method or "None"]


@pytest.mark.skipif(not CLIENT, reason="no jetson-stats in this environment")
def test_without_a_service_the_way_out_is_said(tmp_path):
    said, _ = python("-c", CONNECTED, "", str(tmp_path / "nowhere")).splitlines()
    assert said.startswith("jtop's service cannot be used: The jtop.service is not active. Please run: sudo jtop")


def test_without_the_client_the_way_out_is_said():
    said, _ = python("-c", CONNECTED, "", "no client").splitlines()
    assert said.startswith("jtop's client is not installed: make jtop adds it here")


def test_a_user_who_is_not_let_in_is_told_the_group():
    refused = RuntimeError("I can't access jtop.service.\nPlease logout or reboot this board.")
    refused.__context__ = PermissionError(13, "Permission denied")
    assert complaint(refused).endswith("sudo usermod -aG jtop $USER, and log in anew.")


def test_a_recorded_board_is_never_asked_for_in_this_machines_service(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "jtop", raising=False)  # another test may have imported it
    assert open_jtop(gpus=[], root=tmp_path).energy == {
        "source": "none",
        "covers": None,
        "domains": [],
        "reason": f"jtop's service tells of this machine, not of the one below {tmp_path}.",
    }
    assert "jtop" not in sys.modules
