"""jtop's service as a meter, and as the owner of settings: the real client, in processes of their own."""

import json
import os
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SERVICE = Path(__file__).with_name("jtop_service.py")
SOURCE = Path(__file__).parents[2] / "src"
pytestmark = pytest.mark.skipif(not find_spec("jtop"), reason="jetson-stats is not installed")
PERIOD_S = 0.15
LIMIT_S = 20

METERED = """
import json, logging, os, signal, sys, time
from pathlib import Path
import jtop.service
from epochmeter.machine import jetson
from epochmeter.power.meters.rails import open_jtop

jetson.JETSON_FILES = sys.argv[1:2]
jtop.service.JTOP_PIPE, pid, options, fault = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
messages = []
logging.getLogger("epochmeter.power.sampler").addFilter(lambda record: messages.append(record.getMessage()))
meter = open_jtop(gpus=[], root=Path("/"), **options)
if meter.domains:
    before, opened_ns = meter.read(), time.monotonic_ns()
    if fault:
        os.kill(pid, getattr(signal, fault))
    time.sleep(1.6)
    after, closed_ns = meter.read(), time.monotonic_ns()
    used_w = {name: (after[name] - before[name]) * 1e9 / (closed_ns - opened_ns) for name in after}
    sampling, powers = meter.sampling(opened_ns, closed_ns), meter.drain(closed_ns)
    since_boot_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()) / 1e9
    window = {"watts": used_w, "total_w": meter.total(used_w), "lost": sampling.unavailable, "messages": messages}
    watts = next(iter(powers.watts.values()))
    window["samples"] = [(ns / 1e9 + since_boot_s, w) for ns, w in zip(powers.times_ns, watts)]
else:
    window = {}
meter.close()
print(json.dumps({"energy": meter.energy, "domains": meter.domains, **window}))
"""

CONNECTED = """
import multiprocessing, sys
import jtop.service
from epochmeter.machine.jtop import connect_client

multiprocessing.set_start_method(sys.argv[1] or None, force=True)
for jtop.service.JTOP_PIPE in sys.argv[3:]:
    try:
        with connect_client(0.1, limit_s=float(sys.argv[2])):
            print("connected")
    except RuntimeError as error:
        print(error)
    print(multiprocessing.get_start_method(allow_none=True))
"""

AS_ORDINARY_USER = """
import os, multiprocessing.synchronize  # which only root may read, if Python is in its home
if os.geteuid() == 0:
    os.seteuid(65534)
"""

SERVED = """
import json, sys, tempfile, threading
sys.path.insert(0, sys.argv[1])
import jtop_service
import jtop.service
from epochmeter.power.knobs import jetson

jtop.service.JTOP_PIPE = tempfile.mkdtemp() + "/socket"
service = jtop_service.Service({"interval_s": 0.05})
server = jtop_service.serve(service, jtop.service.JTOP_PIPE)
threading.Thread(target=server.serve_forever, daemon=True).start()
results = []
for call in sys.argv[2:]:
    service.requests.changes, service.script["locked"] = [], call == "request_clocks(False)"
    service.data.update(service.sample(1.0))
    try:
        eval("jetson." + call)
        results.append(service.requests.changes)
    except RuntimeError as error:
        results.append(str(error))
print(json.dumps(results), flush=True)
"""

AGX_ORIN_W = {"VDD_GPU_SOC": 8, "VDD_CPU_CV": 3, "VIN_SYS_5V0": 4, "VDDQ_VDD2_1V8AO": 1}
AGX_ORIN_TOTAL = ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"]
AGX_ORIN_RAILS = {name: {"power": 1000 * watts, "avg": 99999} for name, watts in AGX_ORIN_W.items()}
AGX_ORIN = {"rail": AGX_ORIN_RAILS, "tot": {"power": 16000, "avg": 99999}}
ORIN_NANO = {"rail": {"CPU": {"power": 2000}, "VDD_SOC": {"power": 1500}}, "tot": {"name": "VDD_IN", "power": 6500}}


def python(*command):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.check_output([sys.executable, *command], text=True, env=environment, timeout=LIMIT_S)


@pytest.fixture
def service(open_folder):
    """Function of a script: start a service that follows it, and return its socket and process id."""
    started = []

    def start(script):
        socket = open_folder / "jtop.sock"
        command = [sys.executable, SERVICE, socket, json.dumps({"interval_s": PERIOD_S, **script})]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "ready\n"
        return str(socket), str(started[-1].pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def metered(service):
    """Function of (signal, script): a window of 1.6 s in which the service gets the signal."""

    def run(fault="", *, script, **options):
        options = json.dumps({"period_s": PERIOD_S, **options})
        return json.loads(python("-c", METERED, *service(script), options, fault))

    return run


def test_total_of_agx_orin_is_that_of_its_rail_table(metered):
    window = metered(script={"power": AGX_ORIN}, rails={"total": AGX_ORIN_TOTAL, "gpu": "VDD_GPU_SOC"})
    assert window["total_w"] == pytest.approx(15, rel=0.01)
    assert window["watts"] == pytest.approx(AGX_ORIN_W, rel=0.01)
    assert window["domains"]["VDD_GPU_SOC"][:3] == ["sampled", PERIOD_S, "gpu"]
    assert window["energy"] == {"source": "sampled", "covers": "module", "domains": AGX_ORIN_TOTAL, "reason": None}


@pytest.mark.timed
def test_sampling_period_of_another_client_applies(metered):
    window = metered(script={"interval_s": 0.2})
    assert window["domains"]["VDD_SOC"][1] == 0.2
    # The watts equal the seconds since boot: a reading is at most one period old, and each is read several times.
    ages_s = [uptime_s % 1000 - watts for uptime_s, watts in window["samples"]]
    assert min(ages_s) > -0.02
    assert statistics.median(ages_s) < 0.35, "some are older if the machine pauses"
    assert 3 <= len({watts for _, watts in window["samples"]}) < len(window["samples"]) / 3


@pytest.mark.parametrize(
    ("fault", "script", "why"),
    [("SIGKILL", {}, "jtop's service failed: "), ("SIGSTOP", {}, "no new sample"), ("", {"last": 0}, "no new sample")],
    ids=["dies", "hangs", "stalls"],
)
def test_service_that_fails_during_a_run_is_logged_once_per_rail(metered, fault, script, why):
    window = metered(fault, script={"power": ORIN_NANO, **script})
    assert (window["watts"], window["total_w"]) == ({}, None)
    assert set(window["lost"]) == {"VDD_IN", "CPU", "VDD_SOC"}
    assert [why in text for text in (*window["lost"].values(), *window["messages"])] == [True] * 6


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ({"version": "4.2.1"}, {}, "Mismatch version jtop service: [4.2.1] and client: ["),
        ({"power": {}}, {}, "no power sensor"),
        ({"power": {"rail": {"CPU": {"volt": 5000}}}}, {}, "jtop's service failed: 'power'"),
        ({"power": ORIN_NANO}, {"rails": {"total": ["POM_5V_IN"]}}, "names POM_5V_IN"),
    ],
    ids=["of another version", "no sensor", "other fields", "another board"],
)
def test_unusable_service_is_absent_with_the_reason(metered, script, options, reason):
    energy = metered(script=script, **options)["energy"]
    assert (energy["source"], reason in energy["reason"]) == ("none", True)


@pytest.mark.parametrize(
    ("script", "mode", "message"),
    [
        (
            {"mute": True},
            0o777,
            "No answer from jtop's service within 0.5 s\n  hint: restart it: sudo systemctl restart jtop",
        ),
        ({}, 0, "jtop's service refuses this user\n  hint: sudo usermod -aG jtop $USER, then log in again"),
    ],
    ids=["does not answer", "user outside of its group"],
)
def test_service_without_a_connection_is_an_error_with_a_remedy(service, script, mode, message):
    socket, _ = service({"power": ORIN_NANO, **script})
    os.chmod(socket, mode)
    imports, call = CONNECTED.split("multiprocessing.set", 1)
    program = f"{imports}{AS_ORDINARY_USER}multiprocessing.set{call}"
    assert "\n".join(python("-c", program, "", "0.5", socket).splitlines()[:2]) == message


@pytest.mark.parametrize("method", ["", "spawn"])
def test_start_method_of_multiprocessing_is_kept(service, method):
    socket, _ = service({"power": ORIN_NANO})
    kept = method or "None"
    assert python("-c", CONNECTED, method, "30", "/nowhere", socket).splitlines()[1:] == [kept, "connected", kept]


def test_requests_to_the_service():
    """Requests never have `force`, which would reboot the board, and modes must have the same number."""
    expected = {
        "request_mode(1, '7W')": [{"nvp": {"id": 1, "force": False}}],
        "request_mode(2, '7W')": "jtop has no power mode 2 named 7W",
        "request_mode(0, '7W')": "jtop has no power mode 0 named 7W",
        "request_clocks(True)": [{"jc": {"enable": True}}],
        "request_clocks(False)": [{"jc": {"enable": False}}],
        "request_fan('manual', 100.0)": [
            {"fan": {"command": "profile", "name": "pwmfan", "profile": "manual"}},
            {"fan": {"command": "speed", "name": "pwmfan", "speed": 100.0, "idx": 0}},
        ],
        "request_fan('cool', 30.0)": [{"fan": {"command": "profile", "name": "pwmfan", "profile": "cool"}}],
        "request_fan('nvfancontrol', 30.0)": 'Profile "nvfancontrol" does not exist for Fan "pwmfan".',
    }
    results = json.loads(python("-c", SERVED, str(SERVICE.parent), *expected))
    for (call, requests), sent in zip(expected.items(), results, strict=True):
        assert sent == requests or (call.startswith("request_fan('nvfancontrol'") and requests in sent), call
