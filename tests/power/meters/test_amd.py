import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from epochmeter.power.meters.amd import open_amd

SOURCE = Path(__file__).parents[3] / "src"
UUID = "GPU-1f25e6fa38fdc9e1"

COUNTED = """
import json, sys, time
from pathlib import Path
from epochmeter.power.meters.amd import counter_of, find_cards

try:
    domain, read = counter_of(find_cards(Path(sys.argv[1]))[int(sys.argv[2])], "/")
    begun_j, begun_s = read(), time.monotonic()
    time.sleep(0.2)
    print(json.dumps({"watts": (read() - begun_j) / (time.monotonic() - begun_s), "domain": domain}))
except OSError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture
def card(tmp_path):
    """card("0000:03:00.0", power1_average=...) puts a GPU's files below the root, and gives the root."""

    def written(bus, *, unique_id="", device="0x740f", number=0, **sensors):
        folder = tmp_path / f"sys/class/drm/card{number}/device"
        (folder / "hwmon/hwmon3").mkdir(parents=True)
        (folder / "uevent").write_text(f"DRIVER=amdgpu\nPCI_CLASS=38000\nPCI_SLOT_NAME={bus}\n")
        (folder / "device").write_text(f"{device}\n")
        (folder / "unique_id").write_text(f"{unique_id}\n")
        for name, value in sensors.items():
            (folder / "hwmon/hwmon3" / name).write_text(f"{value}\n")
        return tmp_path

    return written


@pytest.fixture
def opened():
    """Opens meters, and closes them."""
    meters = []

    def made(*gpus, root):
        meters.append(open_amd(gpus=gpus, root=root, period_s=0.01))
        return meters[-1]

    yield made
    for meter in meters:
        meter.close()


@pytest.fixture(scope="session")
def amd_smi(tmp_path_factory):
    """The folder of a libamd_smi.so for LD_LIBRARY_PATH, with every symbol that the real client binds."""
    if not shutil.which("gcc") or not find_spec("amdsmi"):
        pytest.skip("no gcc, or no amdsmi, in this environment")
    folder = tmp_path_factory.mktemp("amd_smi")
    (client,) = find_spec("amdsmi").submodule_search_locations
    bound = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", (Path(client) / "amdsmi_wrapper.py").read_text()))
    own = Path(__file__).parents[1].joinpath("amd_smi_stub.c").read_text()
    rest = "".join(
        f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in sorted(bound) if f" {name}(" not in own
    )
    (folder / "stub.c").write_text(own + rest)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libamd_smi.so", folder / "stub.c"], check=True)
    return folder


@pytest.fixture
def counted(amd_smi, card):
    """What a GPU's counter gives in a process where ROCm's library is the stub, and the driver tells 100 W."""

    def run(bus="0000:c1:00.0", stub=""):
        root = card(bus, power1_average=100_000_000)
        places = {"LD_LIBRARY_PATH": str(amd_smi), "PYTHONPATH": str(SOURCE), "STUB": stub}
        command = [sys.executable, "-c", COUNTED, root, "0"]
        return json.loads(subprocess.check_output(command, text=True, env={**os.environ, **places}))

    return run


def test_the_gpu_used_is_found_by_its_uuid_and_its_drivers_power_sampled(card, opened):
    card("0000:03:00.0", power1_average=9_000_000)
    root = card("0000:c3:00.0", number=1, unique_id="1f25e6fa38fdc9e1", power1_average=250_000_000)
    meter = opened(UUID, root=root)
    before, begun_s = meter.read(), time.monotonic()
    time.sleep(0.2)
    after, seconds = meter.read(), time.monotonic() - begun_s
    assert {name: (after[name] - before[name]) / seconds for name in after} == {"gpu1": pytest.approx(250, rel=0.02)}
    assert meter.domains["gpu1"].covers == "GPU board"
    assert meter.energy["source"] == "sampled"
    assert meter.energy["covers"] == "GPUs used (whole boards)"
    assert meter.energy["reason"].endswith("Its power is sampled instead.")


def test_a_gpu_without_a_uuid_is_found_by_its_place_on_the_bus(card, opened):
    card("0000:03:00.0", power1_average=9_000_000)
    root = card("0000:c3:00.0", number=1, power1_average=250_000_000)
    assert set(opened("0000:03:00.0", root=root).domains) == {"gpu0"}


def test_the_power_of_the_moment_is_preferred_to_a_mean(card, opened):
    root = card("0000:03:00.0", power1_average=9_000_000, power1_input=11_000_000)
    meter = opened("0000:03:00.0", root=root)
    meter.read()
    time.sleep(0.05)
    meter.read()
    assert set(meter.drain(time.monotonic_ns()).watts["gpu0"]) == {11.0}


@pytest.mark.parametrize("name", ["0000:c1:00.0", "0000:c6:00.0", "both"])
def test_of_a_board_with_two_dies_the_first_counts_for_both_and_once(card, opened, name):
    dies = ["0000:c1:00.0", "0000:c6:00.0"]
    card("0000:03:00.0", number=2, power1_average=9_000_000)
    card(dies[0], number=0, device="0x7408", power1_average=180_000_000)
    root = card(dies[1], number=1, device="0x7408", power1_average=0)
    meter = opened(*(dies if name == "both" else [name]), root=root)
    assert set(meter.domains) == {"gpu1"}
    assert meter.domains["gpu1"].covers == "GPU board, both its dies"
    assert meter.energy["covers"] == "GPUs used (whole boards, both dies of each)"


@pytest.mark.parametrize(
    ("gpus", "sensors", "reason"),
    [
        ([], {}, "meter=amd meters the AMD GPUs that a run uses, and none is used."),
        ([UUID], {}, f"amdgpu drives no GPU {UUID}: it drives 0000:03:00.0."),
        (["0000:03:00.0"], {}, "The driver of GPU 0000:03:00.0 tells no power below"),
        (["0000:03:00.0"], {"power1_average": 0}, "The driver of GPU 0000:03:00.0 tells no power below"),
        (["0000:03:00.0"], {"power1_average": "garbage"}, "The driver of GPU 0000:03:00.0 tells no power below"),
    ],
)
def test_without_energy_or_power_of_each_gpu_energy_is_absent_and_the_reason_said(card, opened, gpus, sensors, reason):
    meter = opened(*gpus, root=card("0000:03:00.0", **sensors))
    assert meter.energy["source"] == "none"
    assert reason in meter.energy["reason"]


def test_a_recorded_machines_gpu_is_never_sought_in_this_machines_rocm(card, opened):
    root = card("0000:c1:00.0", power1_average=9_000_000)
    reason = opened("0000:c1:00.0", root=root).energy["reason"]
    assert reason.startswith(f"ROCm tells the energy of this machine's GPUs, not of those below {root}.")


def test_rocms_counter_is_joules(counted):
    counter = counted()
    assert counter["watts"] == pytest.approx(90, rel=0.02)
    assert counter["domain"] == ["counter", 0.001, "GPU board", 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        ("still", "GPU 0000:c1:00.0 counts 0 W while its driver tells 100 W."),
        ("unit", "GPU 0000:c1:00.0 counts 9e+04 W while its driver tells 100 W."),
        (
            "unsupported",
            "GPU 0000:c1:00.0 does not say what energy it used: Error code: 2 | AMDSMI_STATUS_NOT_SUPPORTED",
        ),
        ("silent", "ROCm's amdsmi does not start: Error code: 34 | AMDSMI_STATUS_DRIVER_NOT_LOADED"),
        ("lost", "GPU 0000:c1:00.0 does not say what energy it used: Error code: 31 | AMDSMI_STATUS_NOT_FOUND"),
    ],
)
def test_a_counter_that_is_not_there_or_not_to_be_believed_says_so(counted, stub, reason):
    assert counted(stub=stub)["error"].startswith(reason)


def test_a_gpu_that_rocm_does_not_know_says_so(counted):
    assert counted(bus="0000:03:00.0")["error"].startswith("ROCm finds no GPU 0000:03:00.0: Error code: 31")


@pytest.mark.skipif(shutil.which("rocminfo") is not None, reason="there is ROCm here")
def test_without_rocm_the_import_prints_nothing_and_says_why(card):
    root = card("0000:c1:00.0", power1_average=9_000_000)
    command = [sys.executable, "-c", COUNTED, root, "0"]
    environment = {"PYTHONPATH": str(SOURCE), "ROCM_PATH": "/nowhere", "PATH": os.environ["PATH"]}
    said = subprocess.check_output(command, text=True, env=environment)
    assert json.loads(said)["error"].startswith("ROCm's amdsmi, which tells energy, does not load (")
