from pathlib import Path

import pytest

from epochmeter.machine.gpus import find_gpus, matches_uuid, select_gpus
from epochmeter.machine.nvml import list_gpus

FIRST = {"vendor": "nvidia", "bus": "0000:01:00.0", "minor": "0", "uuid": "GPU-6d5a4f3e-0000"}
SECOND = {"vendor": "nvidia", "bus": "0000:02:00.0", "minor": "1", "uuid": "GPU-6d77aaaa-1111"}
TWO = [FIRST, SECOND]
DIES = [{"vendor": "amd", "bus": f"0000:{bus}:00.0", "uuid": f"GPU-{bus}25e6fa38fdc9e1"} for bus in ("c1", "c6", "c9")]


def seeing(listed):
    return {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [FIRST]),
        ("1", [SECOND]),
        ("1,0", [SECOND]),
        (SECOND["uuid"], [SECOND]),
        ("GPU-6d7", [SECOND]),
        ("", []),
        ("-1", []),
    ],
)
def test_first_visible_gpu_is_used(visible, found):
    assert select_gpus(TWO, seeing(visible), may_open=lambda gpu: True) == found


def test_gpus_of_other_vendors_are_not_numbered():
    assert select_gpus([*TWO, *DIES], seeing("1"), may_open=lambda gpu: True) == [SECOND]
    assert select_gpus([*TWO, *DIES], seeing("2"), may_open=lambda gpu: True) == []


@pytest.mark.parametrize(
    ("environment", "die"),
    [
        ({}, 0),
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "GPU-C625E6FA38FDC9E1"}, 1),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, 1),
        ({"HIP_VISIBLE_DEVICES": ""}, 0),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "1"}, None),
    ],
)
def test_hip_devices_are_numbered_among_rocr_devices(environment, die):
    assert select_gpus(DIES, environment) == ([] if die is None else [DIES[die]])


def test_amd_gpus_are_in_the_drivers_order(tree):
    nodes = {
        0: "simd_count 0\ncpu_cores_count 64\n",
        2: f"simd_count 440\nlocation_id {0xC100}\ndomain 0\nunique_id {0x1F25E6FA38FDC9E1}\n",
        10: f"simd_count 440\nlocation_id {0x03 << 8 | 0x1F << 3 | 1}\ndomain 2\nunique_id 0\n",
    }
    for number, properties in nodes.items():
        node = f"sys/class/kfd/kfd/topology/nodes/{number}"
        root = tree(**{f"{node}/properties": properties, f"{node}/name": "gfx90a\n"})
    assert find_gpus(root) == [
        {"vendor": "amd", "model": "gfx90a", "bus": "0000:c1:00.0", "uuid": "GPU-1f25e6fa38fdc9e1"},
        {"vendor": "amd", "model": "gfx90a", "bus": "0002:03:1f.1"},
    ]


def test_uuid_of_torch_matches_cuda_and_rocm_formats():
    assert matches_uuid("6d5a4f3e-0000-1111-2222-333344445555", "GPU-6d5a4f3e-0000-1111-2222-333344445555")
    assert not matches_uuid("6d77aaaa-0000-1111-2222-333344445555", "GPU-6d5a4f3e-0000-1111-2222-333344445555")
    assert matches_uuid("63313235-6536-6661-3338-666463396531", "GPU-c125e6fa38fdc9e1")
    assert not matches_uuid("63363235-6536-6661-3338-666463396531", "GPU-c125e6fa38fdc9e1")
    assert matches_uuid("63313235-6536-6661-3338-666463396531", "0000:c1:00.0")


@pytest.fixture
def listed(nvml, monkeypatch):
    """Function that lists the GPUs where NVML has two."""

    def find(root, stub=""):
        monkeypatch.setenv("STUB", stub)
        list_gpus.cache_clear()
        return find_gpus(root)

    yield find
    list_gpus.cache_clear()


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="the driver lists the GPUs of this machine in /proc")
def test_gpus_listed_only_by_nvml_are_found(listed):
    found = listed(Path("/"), stub="wsl")
    first = {"vendor": "nvidia", "model": "Stub GPU", "bus": "0000:01:00.0", "uuid": "GPU-aaaa"}
    second = {**first, "bus": "0000:02:00.0", "uuid": "GPU-bbbb"}
    assert found == select_gpus(found, {}, count=None) == [first, second]
    assert [gpu["minor"] for gpu in listed(Path("/"))] == ["0", "1"]


def test_nvml_is_not_used_for_a_recorded_machine(listed, board):
    assert listed(board(["nvidia,p3701-0000", "nvidia,tegra234"])) == []


def test_slurm_job_numbers_the_gpus_that_it_may_open():
    assert select_gpus(TWO, seeing("0"), may_open=lambda gpu: gpu["minor"] == "1") == [SECOND]
