import subprocess

import pytest

from epochmeter.machine.host import describe, detect_device, device_facts, is_match

MODULES = {
    "nano": (1600, "nvidia,p3450-0000 nvidia,jetson-nano nvidia,tegra210"),
    "nx": (1866, "nvidia,p3449-0000+p3668-0000 nvidia,p3668-0000 nvidia,tegra194"),
    "agx": (2133, "nvidia,p2972-0000 nvidia,tegra194"),
    "agx-industrial": (2133, "nvidia,e3900-0000+p2888-0008 nvidia,p2888-0008 nvidia,tegra194"),
    "orin_nano-devkit": (2133, "nvidia,p3768-0000+p3767-0005 nvidia,p3767-0005 nvidia,tegra234"),
    "orin_nano-super": (3199, "nvidia,p3768-0000+p3767-0005-super nvidia,p3767-0005 nvidia,tegra234"),
    "orin_nano-8gb": (2133, "nvidia,p3509-0000+p3767-0003 nvidia,p3767-0003 nvidia,tegra234"),
    "orin_nano-4gb": (2133, "nvidia,p3509-0000+p3767-0004 nvidia,p3767-0004 nvidia,tegra234"),
    "orin_nx-16gb": (3199, "nvidia,p3768-0000+p3767-0000 nvidia,p3767-0000 nvidia,tegra234"),
    "orin_nx-8gb": (3199, "nvidia,p3768-0000+p3767-0001 nvidia,p3767-0001 nvidia,tegra234"),
    "agx_orin": (3199, "nvidia,p3737-0000+p3701-0000 nvidia,p3701-0000 nvidia,tegra234"),
    "thor": (4266, "nvidia,p4071-0000+p3834-0008 nvidia,p3834-0008 nvidia,tegra264"),
}
"""Boards by device: the highest clock of their memory in MHz, and their names in the device tree."""
NANO, AGX_ORIN = MODULES["nano"][1], MODULES["agx_orin"][1]
NVIDIA = "Model: \t\t NVIDIA RTX A4000\nIRQ: \t\t 66\nGPU UUID: \t GPU-6d5a4f3e-0000-1111-2222-333344445555\n"


def cpuinfo(model, cores):
    """The cpuinfo of ARM cores, given as (implementer, part)."""
    core = "processor\t: {}\nmodel name\t: {}\nCPU implementer\t: {}\nCPU architecture: 8\nCPU part\t: {}\n\n"
    return "".join(core.format(number, model, *kind) for number, kind in enumerate(cores))


def governed(governor, least_khz, most_khz, core=0):
    folder = f"sys/devices/system/cpu/cpu{core}/cpufreq"
    values = {"governor": governor, "min_freq": least_khz, "max_freq": most_khz}
    return {f"{folder}/scaling_{name}": f"{value}\n" for name, value in values.items()}


@pytest.mark.parametrize("name", MODULES)
def test_every_board_is_detected_with_its_memory_clock_also_beside_a_desktop_gpu(board, name):
    memory_mhz, names = MODULES[name]
    for files in ({}, {"proc/driver/nvidia/gpus/0000:01:00.0/information": NVIDIA}):
        assert detect_device(facts := device_facts(board(names, **files))) == name.partition("-")[0]
        assert facts["board"] == facts["tegra"] == names
    files = {"etc/nvpmodel.conf": NVPMODEL_CONF, "var/lib/nvpmodel/status": "pmode:0000"}
    mode = describe(board(names, **files))["power_modes"][0]
    assert mode == {"id": 0, "name": "MAXN", "cores": 2, "emc_hz": memory_mhz * 1_000_000}
    facts = device_facts(board("raspberrypi,4-model-b brcm,bcm2711"))
    assert (facts["board"], facts["tegra"]) == ("raspberrypi,4-model-b brcm,bcm2711", None)


def test_all_facts_of_a_match_are_required():
    here = {"board": "nvidia,p3701-0000 nvidia,tegra234", "gpu": "nvidia"}
    matches = [{}, {"board": "p3701", "gpu": "nvidia"}, {"board": "p3701", "gpu": "amd"}, {"tegra": "x"}, None]
    assert [is_match(match, here) for match in matches] == [True, True, False, False, False]


def test_recorded_board_is_described_completely(board):
    files = {
        "sys/firmware/devicetree/base/model": "NVIDIA Jetson Nano Developer Kit\0",
        "proc/sys/kernel/hostname": "nano-3\n",
        "proc/sys/kernel/osrelease": "4.9.337-tegra\n",
        "proc/sys/kernel/random/boot_id": "c0ffee\n",
        "proc/cpuinfo": cpuinfo("ARMv8 Processor rev 1 (v8l)", [("0x41", "0xd07")] * 4),
        "proc/meminfo": "MemTotal:        4059244 kB\nMemFree:          100000 kB\n",
        "sys/class/devfreq/57000000.gpu/min_freq": "76800000\n",
        "sys/class/devfreq/57000000.gpu/max_freq": "921600000\n",
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 18.04.6 LTS"\n',
        "etc/nv_tegra_release": "# R32 (release), REVISION: 7.4, GCID: 33514132, BOARD: t210ref\n",
        "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n<POWER_MODEL ID=1 NAME=5W>\n",
        "var/lib/nvpmodel/status": "pmode:0001 fmode:quiet\n",
    }
    described = describe(board(NANO, **files, **governed("schedutil", 102000, 1479000)))
    assert described.pop("python")
    assert described.pop("packages")["hydra-core"]
    names = {"model": "NVIDIA Jetson Nano Developer Kit", "compatible": NANO}
    assert described == {
        "hostname": "nano-3", "boot_id": "c0ffee", "board": names,
        "cpu": {"model": "Cortex-A57", "cores": 4}, "memory_bytes": 4059244 * 1024,
        "governors": ["schedutil"], "clocks": "free", "power_mode": {"id": 1, "name": "5W"},
        "power_modes": [{"id": id_, "name": name, "emc_hz": 1_600_000_000} for id_, name in enumerate(("MAXN", "5W"))],
        "kernel": "4.9.337-tegra", "os": "Ubuntu 18.04.6 LTS", "l4t": "32.7.4",
    }  # fmt: skip


NVPMODEL_CONF = """
< PARAM TYPE=CLOCK NAME=CPU_A78_0 >
MAX_FREQ /sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq
< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 1
TPC_POWER_GATING TPC_PG_MASK 0
CPU_A78_0 MAX_FREQ -1
GPU MAX_FREQ -1
EMC MAX_FREQ 0
< POWER_MODEL ID=3 NAME=MODE_50W >
CPU_ONLINE CORE_0 1
CPU_ONLINE CORE_1 0
TPC_POWER_GATING TPC_PG_MASK 0
CPU_A78_0 MIN_FREQ 729600
CPU_A78_0 MAX_FREQ 1497600
CPU_A78_1 MAX_FREQ 1113600
GPU MIN_FREQ 0
GPU MAX_FREQ 816000000
EMC MAX_FREQ 2133000000
DLA0_CORE MAX_FREQ 1369600000
< POWER_MODEL ID=1 NAME=MODE_15W >
TPC_POWER_GATING TPC_PG_MASK 248
GPU MAX_FREQ 408000000
< PM_CONFIG DEFAULT=3 >
"""


def test_modes_have_their_clocks_or_else_those_of_the_hardware(board):
    gpu = "sys/class/devfreq/17000000.ga10b"
    files = {
        "etc/nvpmodel.conf": NVPMODEL_CONF,
        "var/lib/nvpmodel/status": "pmode:0003",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "2201600\n",
        "sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq": "2201600\n",
        f"{gpu}/available_frequencies": "306000000 816000000 1300500000\n",
    }
    without_reboot = describe(board(AGX_ORIN, **files))["power_modes"]
    assert without_reboot == [
        {"id": 0, "name": "MAXN", "cores": 2, "cpu_hz": 2_201_600_000, "gpu_hz": 1_300_500_000,
         "emc_hz": 3_199_000_000},
        {"id": 3, "name": "MODE_50W", "cores": 1, "cpu_hz": 1_497_600_000, "gpu_hz": 816_000_000,
         "emc_hz": 2_133_000_000},
    ]  # fmt: skip
    (gated,) = describe(board(AGX_ORIN, **{"var/lib/nvpmodel/status": "pmode:0001"}))["power_modes"]
    assert (gated["name"], gated["gpu_hz"]) == ("MODE_15W", 408_000_000)
    unknown = describe(board(AGX_ORIN, **{"var/lib/nvpmodel/status": "pmode:0009"}))
    assert (unknown["power_mode"], "power_modes" in unknown) == ({"id": 9}, False)
    assert "power_mode" not in describe(board(AGX_ORIN, **{"var/lib/nvpmodel/status": ""}))


def test_arm_cores_and_the_driver_are_described(tree):
    cores = [("0x4e", "0x003")] * 2 + [("0x41", "0xd07")] * 4 + [("0x99", "0x001")]
    for module in ("Kernel Module  535.104.05  Sat", "Open Kernel Module for x86_64  535.104.05  Release Build"):
        driver = f"NVRM version: NVIDIA UNIX {module}\nGCC version:  gcc version 12.2.0\n"
        files = {"proc/driver/nvidia/version": driver, "proc/cpuinfo": cpuinfo("ARMv8 Processor rev 0 (v8l)", cores)}
        host = describe(tree(**files))
        assert host["cpu"] == {"model": "Denver 2 + Cortex-A57 + ARM core 0x99:0x001", "cores": 7}
        assert host["driver"] == "535.104.05"


def test_clocks_are_locked_if_all_minima_equal_the_maxima(tree):
    tree(**governed("schedutil", 1510400, 1510400))
    gpu, other = ({f"sys/class/devfreq/{name}/max_freq": "918000000\n"} for name in ("17000000.ga10b", "gpu-gpc-1"))
    for files, clocks in (
        (governed("schedutil", 115200, 1510400, core=1), "free"),
        (governed("schedutil", 1510400, 1510400, core=1), "locked"),
        ({**gpu, "sys/class/devfreq/17000000.ga10b/min_freq": "306000000\n"}, "free"),
        ({"sys/class/devfreq/17000000.ga10b/min_freq": "918000000\n"}, "locked"),
        ({**other, "sys/class/devfreq/gpu-gpc-1/min_freq": "306000000\n"}, "free"),  # each of a GPU's counts
    ):
        assert describe(tree(**files))["clocks"] == clocks


def git(folder, *command):
    own = ["git", "-C", folder, "-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.check_output([*own, *command], stderr=subprocess.DEVNULL, text=True).strip()


def test_git_commit_and_dirty_state_are_described(tmp_path):
    git(tmp_path, "init")
    assert "git" not in describe(project=tmp_path)
    git(tmp_path, "commit", "--allow-empty", "--message", "one", "--no-verify")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert describe(project=tmp_path)["git"] == {"commit": commit, "dirty": False}
    (tmp_path / "file").touch()
    assert describe(project=tmp_path)["git"] == {"commit": commit, "dirty": True}
