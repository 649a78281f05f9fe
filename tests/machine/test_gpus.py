from pathlib import Path

import pytest

from epochmeter.machine.gpus import find_gpus, matches_uuid, select_gpus
from epochmeter.machine.nvml import list_gpus

FIRST = {"vendor": "nvidia", "bus": "0000:01:00.0", "minor": "0", "uuid": "GPU-6d5a4f3e-0000"}
SECOND = {"vendor": "nvidia", "bus": "0000:02:00.0", "minor": "1", "uuid": "GPU-6d77aaaa-1111"}
TWO = [FIRST, SECOND]
DIES = [{"vendor": "amd", "bus": f"0000:{bus}:00.0", "uuid": f"GPU-{bus}25e6fa38fdc9e1"} for bus in ("c1", "c6", "c9")]


@pytest.mark.parametrize(
    ("gpus", "visible", "minors", "expected"),
    [
        (TWO, None, "01", [FIRST]),
        *((TWO, visible, "01", [SECOND]) for visible in ("1", "1,0", SECOND["uuid"], "GPU-6d7")),
        *((TWO, visible, "01", []) for visible in ("", "-1", "1,1")),
        pytest.param([*TWO, *DIES], "1", "01", [SECOND], id="another vendor's GPUs are not numbered"),
        pytest.param([*TWO, *DIES], "2", "01", [], id="another vendor's GPU"),
        pytest.param(TWO, "0", "1", [SECOND], id="a Slurm job numbers the GPUs that it may open"),
    ],
)
def test_first_visible_gpu_is_used(gpus, visible, minors, expected):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert select_gpus(gpus, environment, may_open=lambda gpu: gpu["minor"] in minors) == expected


def test_hip_devices_are_numbered_among_rocr_devices():
    for environment, die in (
        ({}, 0),
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "GPU-C625E6FA38FDC9E1"}, 1),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, 1),
        ({"HIP_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "1"}, None),
    ):
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
    nvidia, amd = "6d5a4f3e-0000-1111-2222-333344445555", "63313235-6536-6661-3338-666463396531"
    expected = {f"GPU-{nvidia}": [nvidia], "GPU-c125e6fa38fdc9e1": [amd], "0000:c1:00.0": [nvidia, amd]}
    for name, matching in expected.items():
        assert [uuid for uuid in (nvidia, amd) if matches_uuid(uuid, name)] == matching


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="the driver lists the GPUs of this machine in /proc")
def test_gpus_listed_only_by_nvml_are_found_except_for_a_recorded_machine(nvml, monkeypatch, board):
    def listed(root, stub=""):
        monkeypatch.setenv("STUB", stub)
        list_gpus.cache_clear()
        return find_gpus(root)

    found = listed(Path("/"), stub="wsl")
    first = {"vendor": "nvidia", "model": "Stub GPU", "bus": "0000:01:00.0", "uuid": "GPU-aaaa"}
    second = {**first, "bus": "0000:02:00.0", "uuid": "GPU-bbbb"}
    assert found == select_gpus(found, {}, count=None) == [first, second]
    assert [gpu["minor"] for gpu in listed(Path("/"))] == ["0", "1"]
    assert listed(board("nvidia,p3701-0000 nvidia,tegra234")) == []
    list_gpus.cache_clear()
