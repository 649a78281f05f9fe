"""The doctor, on machines whose files are in a folder."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import boards
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from power.conftest import nvml_stub  # noqa: F401
from project import put
from stub import executable

from epochmeter.config.entries import Examination
from epochmeter.config.versions import DEFAULTS
from epochmeter.machine.busy_processes import BusyProcess
from epochmeter.machine.cpu_load import CpuUse
from epochmeter.power.knobs.restore_journal import RestoreJournal
from epochmeter.run import capabilities
from epochmeter.run.capabilities import examine_machine, load_rows

ROOT = Path(__file__).parents[2]
ALWAYS = {
    "device", "energy", "power limit", "clocks", "fan", "CPU utilization", "GPU utilization", "GPU clock", "memory",
    "temperature", "throttling", "storage", "page cache", "disk reads", "trace",
    "GPU counters",
}  # fmt: skip

ROUNDED = 0.005
"""Rounding error of a power that is shown with three digits."""


@pytest.fixture
def doctor(tmp_path):
    """doctor("device=cpu", ...) -> the ended command, which leaves its working folder empty."""

    def run(*arguments, before=()):
        here = tmp_path / "here"
        here.mkdir(exist_ok=True)
        command = [*before, sys.executable, ROOT / "src/doctor.py", f"machine.state_dir={tmp_path / 'state'}"]
        environment = {**os.environ, "COLUMNS": "80"}
        ended = subprocess.run(
            [*command, *arguments], cwd=here, env=environment, capture_output=True, text=True, timeout=60
        )
        assert list(here.iterdir()) == []
        return ended

    return run


@pytest.fixture
def examined(tmp_path):
    """examined("device=cpu", ...) -> the rows by quantity, without starting the command; the device must be named."""
    with initialize_config_dir(str(ROOT / "conf"), **DEFAULTS):

        def examine(*overrides):
            config = compose("doctor", overrides=[f"machine.state_dir={tmp_path / 'state'}", *overrides])
            rows = examine_machine(Examination.from_dict(OmegaConf.to_container(config, resolve=True)), "cpu")
            return by_quantity([row._asdict() for row in rows])

        yield examine


@pytest.fixture
def scripted_clock(monkeypatch):
    """The monotonic clock advances only while the examination sleeps: a busy machine does not delay its readings."""
    real_ns, real_sleep = time.monotonic_ns, time.sleep
    now_ns = real_ns()

    def sleep(seconds):
        nonlocal now_ns
        offset_ns, end_ns = now_ns - real_ns(), now_ns + round(seconds * 1e9)
        while now_ns < end_ns:
            real_sleep(0.001)  # the sampler's thread runs meanwhile
            now_ns = min(end_ns, real_ns() + offset_ns)

    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(time, "sleep", sleep)


def by_quantity(rows):
    """Return the rows by quantity, without fields that are None."""
    found = {row.pop("quantity"): {key: value for key, value in row.items() if value is not None} for row in rows}
    assert len(found) == len(rows)
    assert found.keys() >= ALWAYS
    return found


@pytest.mark.usefixtures("scripted_clock")
def test_jetson_has_module_rails_and_power_modes(tmp_path, examined):
    tree = boards.write(tmp_path / "board", "agx_orin")
    found = examined(f"machine.root={tree.root}", "device=agx_orin")
    assert found["device"] == {"offered": True, "source": "device=agx_orin", "covers": "Jetson AGX Orin"}
    assert float(found["energy"].pop("now").removesuffix(" W")) == pytest.approx(tree.board.total_w(), rel=ROUNDED)
    assert 0.002 < found["energy"].pop("period_s") < 0.5
    rails = "module: VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
    assert found["energy"] == {"offered": True, "source": "sampled (meter=rails)", "covers": rails}
    for rail, watts in tree.board.shown_w().items():
        assert float(found[f"power: {rail}"]["now"].removesuffix(" W")) == pytest.approx(watts, rel=ROUNDED)
    assert found["power limit"]["now"] == "MAXN (id:0)"
    assert "MODE_50W (id:3)" in found["power limit"]["choices"]
    assert found["temperature"]["offered"]
    assert found["GPU clock"]["source"] == "devfreq 17000000.gpu"
    assert "as on a Jetson" in found["GPU counters"]["why"]


def test_table_fits_80_columns_also_with_options_of_the_user(tmp_path, doctor):
    tree = boards.write(tmp_path / "board", "nano")
    own = put(tmp_path / "own", {"dataset/mine.yaml": "defaults: [digits]\nname: mine\n"})
    shown = doctor(f"machine.root={tree.root}", f"hydra.searchpath=[file://{own}]", "dataset=mine")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    first = {" ".join(line.split()[:3]) for line in lines}
    assert {"device yes device=nano:", "power: POM_5V_IN yes"} <= first
    every = next(line.split()[2:4] for line in lines if line.startswith("energy"))
    assert 0.005 < float(every[0]) < 0.5
    assert every[1] == "s"
    assert "5W (id:1)" in " ".join(shown.stdout.split())


def test_gpu_has_counter_gauges_and_limit(tmp_path, doctor, nvml_stub):  # noqa: F811
    information = "Model: \t\t NVIDIA RTX A4000\nGPU UUID: \t GPU-aaaa\n"
    root = put(tmp_path / "pc", {"proc/driver/nvidia/gpus/0000:01:00.0/information": information})
    if not find_spec("pynvml"):
        pytest.skip("no nvidia-ml-py in this environment, as on a board")
    environment = [f"LD_LIBRARY_PATH={nvml_stub}", "STUB=hopper,ticks"]
    ended = doctor("format=json", f"machine.root={root}", before=["env", *environment])
    assert ended.returncode == 0, ended.stderr
    found = by_quantity(json.loads(ended.stdout)["result"]["rows"])
    assert found["device"]["covers"] == "NVIDIA GPU with NVIDIA RTX A4000"
    for quantity in ("energy", "power: gpu0"):
        assert float(found[quantity]["now"].removesuffix(" W")) == pytest.approx(200, abs=2 * 20), "two ticks of 20 J"
    assert (found["power limit"]["now"], found["power limit"]["choices"]) == ("250 W", "100 to 300 W")
    sources = dict.fromkeys(("GPU utilization", "GPU clock", "temperature", "throttling"), "NVML, gpu0")
    sources |= {"energy": "counter (meter=nvml)", "GPU counters": "GPM (NVML)"}
    assert {quantity: found[quantity]["source"] for quantity in sources} == sources
    assert found["GPU counters"]["covers"].startswith("sm_active_fraction, sm_occupancy_fraction, ")


def test_everything_unavailable_has_a_reason_and_a_remedy(tmp_path, examined):
    python = executable(tmp_path / "python", "#!/bin/sh\nexit 1\n")
    found = examined(f"machine.root={tmp_path}", "device=cpu", f"device.python={python}")
    assert found["device"]["source"] == "device=cpu"
    there = {"device", "storage", "page cache", "disk reads"}
    assert not any(found[quantity]["offered"] for quantity in ALWAYS - there)
    assert "sudo modprobe intel_rapl_msr" in found["energy"]["remedy"]
    assert found["power limit"] == {"offered": False, "why": "this machine has no power limit to set"}
    assert "modprobe coretemp" in found["temperature"]["remedy"]
    assert found["memory"]["remedy"] == "mount /proc"
    assert found["trace"]["why"] == f"training is not possible: {python} is not Python 3.6 or newer with torch"
    assert "device.python=/path" in found["trace"]["remedy"]
    other = examined(f"machine.root={tmp_path}", "device=nano", "device.python=null")
    assert other["device"]["why"].endswith("device=nano requested, this machine is device=cpu: runs are rehearsals")
    assert "INA3221" in other["energy"]["why"], "the reason of its own meter"
    assert other["trace"]["offered"]


def test_page_cache_is_available_unless_files_cannot_be_read(tmp_path, examined, monkeypatch):
    put(tmp_path, {"data/.marker": "", "data/train/0/1.png": "pixels"})
    options = ("device=cpu", "dataset=imagefolder", f"dataset.root={tmp_path / 'data'}")
    assert examined(*options)["page cache"]["offered"]

    def refused(files):
        raise PermissionError(13, "Permission denied", files[0])

    monkeypatch.setattr(capabilities, "resident_fraction", refused)
    row = examined(*options)["page cache"]
    assert (row["offered"], "Permission denied" in row["why"], row["remedy"].partition(":")[0]) == (
        False, True, "take ownership",
    )  # fmt: skip


def test_setting_left_by_a_killed_run_has_the_command_that_restores_it(tmp_path, examined):
    tree = boards.write(tmp_path / "board", "nano")
    command = "train.py device=nano"
    journal = RestoreJournal(str(tmp_path / "state"), root=str(tree.root), command=command)
    entry = journal.note("nvpmodel", [], "MAXN (id:0)", "sudo nvpmodel -m 0")
    journal.update(entry._replace(applied="5W (id:1)", boot_id="the boot before"))
    left = examined(f"machine.root={tree.root}", "device=nano", "meter=none")["not restored: nvpmodel"]
    assert left["why"].startswith("a killed run left it at 5W (id:1)")
    assert command in left["why"]
    assert left["remedy"] == "the next run restores MAXN (id:0); to restore it now: sudo nvpmodel -m 0"


def test_processor_is_idle_unless_other_processes_leave_no_core_free(monkeypatch):
    monkeypatch.setattr(capabilities, "OBSERVE_S", 0.0)

    def shown(reason="", **use):
        rows = load_rows(Mock(window=lambda *_: CpuUse(**use), reason=reason))
        return {row.quantity: (row.offered, row.now, row.why) for row in rows}

    counted = {"waits for a core": (True, None, None)}
    assert shown(other_fraction=0.034) == {"idle processor": (True, "3.4 % used by other processes", None), **counted}
    busy = CpuUse(0.62, is_contended=True, others=[BusyProcess("make", 7, 0.5)])
    assert shown(**busy._asdict()) == {"idle processor": (False, None, busy.note), **counted}
    assert shown("not counted") == {"waits for a core": (False, None, "not counted")}
