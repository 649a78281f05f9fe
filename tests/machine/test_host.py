import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from trainmeter.machine.host import describe, detect, facts, fits

CONF = Path(__file__).parents[2] / "conf" / "device"
DEVICES = {path.stem: OmegaConf.to_container(OmegaConf.load(path))["match"] for path in CONF.glob("*.yaml")}

MODULES = {
    "nano": ["nvidia,p3450-0000", "nvidia,jetson-nano", "nvidia,tegra210"],
    "nx": ["nvidia,p3449-0000+p3668-0000", "nvidia,p3668-0000", "nvidia,tegra194"],
    "agx": ["nvidia,p2972-0000", "nvidia,tegra194"],
    "agx-industrial": ["nvidia,e3900-0000+p2888-0008", "nvidia,p2888-0008", "nvidia,tegra194"],
    "orin_nano-devkit": ["nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"],
    "orin_nano-super": ["nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234"],
    "orin_nano-8gb": ["nvidia,p3509-0000+p3767-0003", "nvidia,p3767-0003", "nvidia,tegra234"],
    "orin_nano-4gb": ["nvidia,p3509-0000+p3767-0004", "nvidia,p3767-0004", "nvidia,tegra234"],
    "orin_nx-16gb": ["nvidia,p3768-0000+p3767-0000", "nvidia,p3767-0000", "nvidia,tegra234"],
    "orin_nx-8gb": ["nvidia,p3768-0000+p3767-0001", "nvidia,p3767-0001", "nvidia,tegra234"],
    "agx_orin": ["nvidia,p3737-0000+p3701-0000", "nvidia,p3701-0000", "nvidia,tegra234"],
    "thor": ["nvidia,p4071-0000+p3834-0008", "nvidia,p3834-0008", "nvidia,tegra264"],
}
"""Boards by the device they are, as their device trees name them."""


@pytest.mark.parametrize("name", MODULES)
def test_each_board_is_detected(board, name):
    assert detect(DEVICES, facts(board(MODULES[name]))) == name.partition("-")[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_board_is_found_before_the_driver_that_desktops_have_as_well(board, nvidia, name):
    assert detect(DEVICES, facts(board(MODULES[name], **nvidia))) == name.partition("-")[0]


def test_a_machine_is_detected_by_the_maker_of_its_gpu(tree, nvidia):
    assert detect(DEVICES, facts(tree(**nvidia))) == "cuda"


def test_an_amd_gpu_is_told_from_a_cpu_in_the_same_list(tree, amd):
    assert detect(DEVICES, facts(tree(**amd))) == "rocm"


def test_any_other_machine_is_a_cpu(tree, board):
    assert detect(DEVICES, facts(tree())) == "cpu"
    assert detect(DEVICES, facts(board(["raspberrypi,4-model-b", "brcm,bcm2711"]))) == "cpu"


def test_a_device_without_a_match_is_never_detected():
    with pytest.raises(ValueError, match=r"device=auto: no device fits .*Name one: device=auto\|nano\."):
        detect({"auto": None, "nano": {"board": "p3450"}}, {"board": None, "gpu": None})


def test_every_fact_asked_for_has_to_fit():
    here = {"board": "nvidia,p3701-0000 nvidia,tegra234", "gpu": "nvidia"}
    assert fits({}, here)
    assert fits({"board": "p3701", "gpu": "nvidia"}, here)
    assert not fits({"board": "p3701", "gpu": "amd"}, here)
    assert not fits({"board": "p3450"}, {"board": None, "gpu": None})


def test_a_recorded_board_is_described_in_full(board):
    root = board(
        MODULES["nano"],
        **{
            "sys/firmware/devicetree/base/model": "NVIDIA Jetson Nano Developer Kit\0",
            "proc/sys/kernel/hostname": "nano-3\n",
            "proc/sys/kernel/osrelease": "4.9.337-tegra\n",
            "proc/sys/kernel/random/boot_id": "c0ffee\n",
            "proc/cpuinfo": "".join(f"processor\t: {core}\nCPU part\t: 0xd07\n\n" for core in range(4)),
            "proc/meminfo": "MemTotal:        4059244 kB\nMemFree:          100000 kB\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "schedutil\n",
            "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 18.04.6 LTS"\n',
            "etc/nv_tegra_release": "# R32 (release), REVISION: 7.4, GCID: 33514132, BOARD: t210ref\n",
            "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=5W >\n",
            "var/lib/nvpmodel/status": "pmode:0001 fmode:quiet\n",
        },
    )
    described = describe(root)
    assert described.pop("python")
    assert described.pop("packages")["hydra-core"]
    assert described == {
        "hostname": "nano-3",
        "boot_id": "c0ffee",
        "board": {
            "model": "NVIDIA Jetson Nano Developer Kit",
            "compatible": "nvidia,p3450-0000 nvidia,jetson-nano nvidia,tegra210",
        },
        "cpu": {"cores": 4},
        "memory_bytes": 4059244 * 1024,
        "governors": ["schedutil"],
        "power_mode": {"id": 1, "name": "5W"},
        "kernel": "4.9.337-tegra",
        "os": "Ubuntu 18.04.6 LTS",
        "l4t": "32.7.4",
    }


def test_gpus_are_named_and_numbered_as_the_driver_does(tree, nvidia, amd):
    assert describe(tree(**nvidia, **amd))["gpus"] == [
        {
            "vendor": "nvidia",
            "model": "NVIDIA RTX A4000",
            "bus": "0000:01:00.0",
            "uuid": "GPU-6d5a4f3e-0000-1111-2222-333344445555",
        },
        {"vendor": "amd", "model": "gfx1100"},
    ]


def test_a_uuid_that_the_driver_does_not_know_yet_is_left_out(tree):
    text = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-????????-????-????-????-????????????\n"
    gpus = describe(tree(**{"proc/driver/nvidia/gpus/0000:01:00.0/information": text}))["gpus"]
    assert gpus == [{"vendor": "nvidia", "model": "NVIDIA H200", "bus": "0000:01:00.0"}]


def test_a_board_recorded_under_proc_is_read_there(tree):
    root = tree(**{"proc/device-tree/compatible": "nvidia,p3701-0000\0nvidia,tegra234\0"})
    assert facts(root)["board"] == "nvidia,p3701-0000 nvidia,tegra234"


def test_of_a_machine_that_says_nothing_only_our_own_part_is_told(tree):
    assert set(describe(tree())) == {"python", "packages"}


def test_this_machine_can_be_described():
    assert {"hostname", "cpu", "memory_bytes", "kernel", "boot_id"} <= set(describe())


def git(folder, *command):
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.run(
        ["git", "-C", folder, *author, *command], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_projects_commit_is_told_and_whether_files_differ_from_it(tmp_path):
    git(tmp_path, "init")
    assert "git" not in describe(project=tmp_path)
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--message", "one", "--no-verify")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert describe(project=tmp_path)["git"] == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("two")
    assert describe(project=tmp_path)["git"] == {"commit": commit, "dirty": True}


def test_without_a_repository_no_commit_is_told(tmp_path):
    assert "git" not in describe(project=tmp_path)
