import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

WINDOW = """
import json, logging, sys
from trainmeter.power.meter import open_meter, unmetered, window_energy

logging.disable()
meter = open_meter({"name": "nvml", "_target_": "trainmeter.power.nvml.open_nvml"}, gpus=sys.argv[1:])
before, after = meter.read(), meter.read()
meter.close()
metrics, notes = window_energy(before, after, meter, 1), unmetered(before, after, meter, 1)
print(json.dumps({"energy": meter.energy, "domains": meter.domains, "metrics": metrics, "notes": notes}))
"""

IMPORTED = """
import sys
from trainmeter.power.nvml import open_nvml

print(open_nvml(gpus=["GPU-aaaa"], root="/").energy["reason"], {"zeus", "pynvml"} & set(sys.modules))
"""


@pytest.fixture
def window_of(with_nvml):
    """What the meter of some GPUs says of the window between its first two readings."""
    return lambda *gpus, stub="": json.loads(with_nvml(WINDOW, *gpus, stub=stub))


def test_a_window_costs_what_the_counter_of_the_gpu_used_went_on_by(window_of):
    window = window_of("GPU-bbbb")
    assert window["energy"] == {"source": "counter", "covers": "GPUs used (whole boards)", "reason": None}
    assert window["domains"] == {"gpu1": ["counter", 0.1, "GPU board"]}
    assert window["metrics"] == {"energy_j": 25.0, "energy_gpu1_j": 25.0}


def test_several_gpus_are_added_up(window_of):
    metrics = window_of("GPU-aaaa", "GPU-bbbb")["metrics"]
    assert metrics == {"energy_j": 37.5, "energy_gpu0_j": 12.5, "energy_gpu1_j": 25.0}


def test_a_gpu_may_be_named_as_torch_does_without_its_prefix(window_of):
    assert window_of("aaaa")["metrics"]["energy_j"] == 12.5


@pytest.mark.parametrize(
    ("gpus", "stub", "reason"),
    [
        (["GPU-aaaa"], "unsupported", "GPU GPU-aaaa does not say what energy it used: Not Supported."),
        (["GPU-aaaa"], "zero", "GPU GPU-aaaa has an energy counter that stands at 0."),
        (["GPU-aaaa"], "silent", "The NVIDIA driver is here, but NVML does not start: Driver Not Loaded."),
        (["GPU-aaaa", "GPU-cccc"], "", "NVML finds no GPU GPU-cccc: Not Found."),
        (["MIG-aaaa"], "", "MIG-aaaa is a slice of a GPU (MIG), and only whole GPUs count their energy."),
        (
            ["GPU-bbbb"],
            "mig",
            "GPU GPU-bbbb is in slices (MIG): its counter covers all of them, not the one used.",
        ),
        ([], "", "meter=nvml counts the GPUs that a run uses, by UUID, and no GPU with a known UUID is used."),
    ],
)
def test_without_a_counter_of_each_gpu_energy_is_absent_and_the_reason_said(window_of, gpus, stub, reason):
    window = window_of(*gpus, stub=stub)
    assert window["energy"] == {"source": "none", "covers": None, "reason": reason}
    assert window["metrics"] == {}


def test_a_gpu_whose_slices_are_off_counts_though_its_neighbor_is_sliced(window_of):
    assert window_of("GPU-aaaa", stub="mig")["metrics"]["energy_j"] == 12.5


def test_a_gpu_that_is_lost_in_mid_run_has_no_energy_and_ends_nothing(window_of):
    window = window_of("GPU-aaaa", stub="lost")
    assert window["metrics"] == {}
    assert [note.partition(",")[0] for note in window["notes"]] == ["no energy of gpu0"]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is an NVIDIA driver here")
def test_without_a_driver_zeus_is_never_imported():
    environment = {"PYTHONPATH": str(SOURCE)}
    said = subprocess.check_output([sys.executable, "-c", IMPORTED], text=True, env=environment)
    assert said == "There is no NVIDIA driver here: libnvidia-ml.so.1 cannot be loaded. set()\n"
