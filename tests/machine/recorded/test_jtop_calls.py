"""What jtop's service reports is recorded without its identifiers, and measured again from the recording."""

import gzip
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from power.conftest import open_folder  # noqa: F401
from power.test_jtop import ORIN_NANO, SERVICE, service  # noqa: F401
from project import ROOT, put
from recordings import pc

from epochmeter.machine import jtop
from epochmeter.machine.recorded import jtop_calls
from epochmeter.machine.recorded.recorder import record_machine
from epochmeter.machine.recorded.root import root_folder, use_machine
from epochmeter.machine.recorded.stand_ins import RecordedJtop
from epochmeter.power.knobs.jetson import request_mode
from epochmeter.power.meters.rails import open_jtop
from epochmeter.power.window_energy import energy_of_window, take_reading
from epochmeter.shared.problem import MachineError

SERIAL = "1421221035789"
HARDWARE = {"Model": "NVIDIA Jetson Orin Nano", "Serial Number": SERIAL, "P-Number": "p3767-0003", "L4T": "36.4.3"}
INTERVAL_S = 0.5  # of the service; a sample is late after 1.5 times this, which a busy machine does not reach
PERIOD_S, DURATION_S, SQUARE_S, LOW_W, HIGH_W = 0.05, 2.0, 0.5, 4.0, 12.0

RECORD = """
import sys
from pathlib import Path
import jtop.service
from epochmeter.machine import jtop as own
from epochmeter.machine.recorded.recorder import record_machine

jtop.service.JTOP_PIPE, own.no_service = sys.argv[1], lambda root: ""
record_machine(Path(sys.argv[2]), Path(sys.argv[3]), 1.0, None, "no load")
"""


@pytest.fixture(autouse=True)
def _own_drivers():
    yield
    use_machine("/")
    jtop.replace_client(None)


def square(**calls):
    """A service whose module alternates between two powers, of which a rail has a quarter."""
    times_s = [PERIOD_S * number for number in range(round(DURATION_S / PERIOD_S))]
    watts = [HIGH_W if at_s % (2 * SQUARE_S) < SQUARE_S else LOW_W for at_s in times_s]
    powers = [{"rail": {"VDD_SOC": {"power": 250 * w}}, "tot": {"name": "VDD_IN", "power": 1000 * w}} for w in watts]
    series = {"power": powers, "uptime": [1000.0 + at_s for at_s in times_s]}
    calls = {"interval": {"result": INTERVAL_S}, **{name: {"result": of[0]} for name, of in series.items()}, **calls}
    fields = {
        name: {"times_s": times_s, "values": [{"result": value} for value in values]} for name, values in series.items()
    }
    return RecordedJtop({"calls": calls, "series": fields}, DURATION_S)


def recorded(tmp_path, client, seconds=0.2):
    root, archive = put(tmp_path / "machine", pc("a CPU")), tmp_path / "board.tar.gz"
    jtop.replace_client(client)
    record_machine(archive, root, seconds, None, "no load")
    jtop.replace_client(None)
    return archive


def mean_w(root, seconds):
    """The mean power of each domain, by the meter of jtop's service."""
    with closing(open_jtop(gpus=[], root=root)) as meter:
        assert meter.energy["source"] == "sampled", meter.energy["reason"]
        before = take_reading(meter)
        time.sleep(seconds)
        after = take_reading(meter)
        used = energy_of_window(before, after, meter, (after.at_ns - before.at_ns) / 1e9)
    return {name: joules * 1e9 / (after.at_ns - before.at_ns) for name, joules in used.joules.items()}


def test_replayed_service_has_the_power_of_the_recorded_one_and_goes_on(tmp_path):
    """The recording has two periods of the power; it is measured for longer than it took, over its end."""
    archive = recorded(tmp_path, square(), seconds=DURATION_S)
    use_machine(archive)
    watts = mean_w(root_folder(archive), 3 * DURATION_S / 2)
    mean = (LOW_W + HIGH_W) / 2
    assert watts == pytest.approx({"VDD_IN": mean, "VDD_SOC": mean / 4}, rel=0.1)


def test_real_client_is_recorded_without_the_serial_number(tmp_path, service):  # noqa: F811
    if not find_spec("jtop"):
        pytest.skip("jetson-stats is not installed")
    socket, _ = service({"power": ORIN_NANO, "hardware": HARDWARE})
    root, archive = put(tmp_path / "machine", pc("a CPU")), tmp_path / "board.tar.gz"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", RECORD, socket, archive, root], check=True, env=environment, timeout=60)
    content = gzip.decompress(archive.read_bytes()).decode(errors="replace")
    assert SERIAL not in content
    assert "p3767-0003" in content
    use_machine(archive)
    with closing(open_jtop(gpus=[], root=root_folder(archive))) as meter:
        watts = {name: instrument.read() for name, instrument in meter.instruments.items()}
    assert watts == {"VDD_IN": 6.5, "CPU": 2.0, "VDD_SOC": 1.5}
    with jtop.connect_client(0.5) as client:
        assert client.interval == 0.15
        assert client.nvpmodel.models == ["15W", "7W"]
        assert client.temperature["CPU"]["temp"] == 41.5
        assert client.jetson_clocks.get_enable is False
        assert client.cpu["cpu"][0]["freq"]["cur"] == 729600
        assert client.gpu["ga10b"]["freq"]["cur"] == 306000
        assert client.fan["pwmfan"]["profile"] == "quiet"
        assert client.board["hardware"]["Model"] == HARDWARE["Model"]
        for name in (*jtop_calls.ONCE, *jtop_calls.POWER, *jtop_calls.GAUGES):
            getattr(client, name)
        for name in ("processes", "local_interfaces", "disk"):
            assert not hasattr(client, name)


def test_settings_of_a_recorded_service_are_not_changed(tmp_path):
    mode = {"id": 0, "name": "15W", "models": ["15W", "7W"], "status": [True]}
    use_machine(recorded(tmp_path, square(nvpmodel={"result": mode})))
    with pytest.raises(MachineError, match="recorded machine"):
        request_mode(1, "7W")


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ({"power": {"error": "Lost connection with jtop server"}}, "jtop's service failed: Lost connection"),
        ({"power": {"result": {}}}, "no power sensor"),
        ({"power": {"result": {"rail": {"CPU": {"volt": 5000}}}}}, "jtop's service failed: 'power'"),
    ],
    ids=["failed", "no sensor", "other fields"],
)
def test_unusable_service_has_the_same_reason_in_the_replay(tmp_path, calls, reason):
    def client():
        made = square(**calls)
        made._answers._series.pop("power")
        return made

    jtop.replace_client(client())
    live = open_jtop(gpus=[], root=Path("/"))
    archive = recorded(tmp_path, client())
    use_machine(archive)
    replayed = open_jtop(gpus=[], root=root_folder(archive))
    assert live.energy["source"] == replayed.energy["source"] == "none"
    assert reason in live.energy["reason"]
    assert replayed.energy["reason"] == live.energy["reason"]


def test_machine_without_a_connection_has_the_recorded_reason_and_hint(tmp_path):
    table = {"reason": "jtop's service refuses this user", "hint": "sudo usermod -aG jtop $USER, then log in again"}
    use_machine(recorded(tmp_path, RecordedJtop(table, 1.0)))
    energy = open_jtop(gpus=[], root=Path("/")).energy
    assert (energy["reason"], energy["hint"]) == (table["reason"], table["hint"])


def test_service_of_this_machine_is_not_recorded_for_another_root_and_not_asked_in_a_replay(tmp_path, monkeypatch):
    archive = recorded(tmp_path, None)
    monkeypatch.setattr(jtop.jetson, "runs_on_jetson", lambda: True)
    use_machine(archive)
    assert "not the one below" in open_jtop(gpus=[], root=root_folder(archive)).energy["reason"]
    with gzip.open(archive) as packed:
        assert json.dumps("no_service").encode() in packed.read()
