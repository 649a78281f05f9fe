"""Machines to record and replay: their files below a root, and the calls of their GPUs' driver.

Names, limits, scopes and formats are public facts, each with its source; the watts are made up, except those of GB300.
`plant` adds the identifiers of a machine, its users and its network, none of which a recording may have.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boards
from controls import COUNTER_RANGE_J, Board
from project import put

from epochmeter.machine.recorded.stand_ins import RecordedAmdSmi, RecordedNvml

DURATION_S, TICK_S = 20.0, 0.1
NOT_SUPPORTED: Mapping[str, int] = {"error": 3}
UUID = "GPU-7ab4c1de-91f0-4c2e-a5b6-0011223344{:02}"
SERIAL = "16530230{:05}"
SECRETS = (
    *("borealis-ws7", "borealis--ws7", "kowalczyk", "Kowalczyk", "kowalczyk@uni.example", "filer.borealis"),
    *("9f86d081884c7d659a2feaa0c55ad015", "5CD2109XYZ", "S5H9NS0NB12345K", "1421221035789", "0025385b21409f6a"),
    *("0c:42:a1:9e:77:31", "0c42a19e7731", "10.77.3.21", "fe80::e42:a1ff:fe9e:7731", "secretproject"),
    *("7ab4c1de-91f0-4c2e", "1653023000001", "1f25e6fa38fdc9e1", str(0x1F25E6FA38FDC9E1)),
)
"""Identifiers that are planted in contents and in names of files."""


class Machine(NamedTuple):
    """A machine: how its files are written, the calls of its NVIDIA GPUs, and the device that runs on it use."""

    device: str
    write: Callable[[Path], object]
    gpus: tuple[dict[str, Any], ...] = ()
    watts: float | None = None  # what its meter measures

    def nvml(self) -> RecordedNvml:
        """The client of NVML, which begins now."""
        if not self.gpus:
            return RecordedNvml({"reason": "no NVIDIA driver: cannot load libnvidia-ml.so.1"}, DURATION_S)
        system = {"nvmlDeviceGetCount()": {"result": len(self.gpus)}}
        system |= {"nvmlSystemGetDriverVersion()": {"result": "580.65.06"}}
        return RecordedNvml({"system": system, "gpus": list(self.gpus)}, DURATION_S)


NO_AMDSMI = RecordedAmdSmi({"reason": "cannot import amdsmi (no ROCm): install ROCm's amd-smi-lib"}, DURATION_S)


def plant(root: Path) -> Path:
    """Add the identifiers to the files of a machine, and return its root."""
    disk = "sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1"
    put(root, {
        "proc/sys/kernel/hostname": "borealis-ws7\n", "etc/hostname": "borealis-ws7\n",
        "etc/machine-id": "9f86d081884c7d659a2feaa0c55ad015\n",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\nkowalczyk:x:1000:1000:Maria Kowalczyk,,,:/home/kowalczyk:/bin/sh\n",
        "sys/class/dmi/id/product_serial": "5CD2109XYZ\n", "sys/class/dmi/id/product_name": "Reference Board\n",
        "sys/firmware/devicetree/base/serial-number": "1421221035789\0",
        "sys/class/net/enx0c42a19e7731/address": "0c:42:a1:9e:77:31\n",
        "sys/class/net/enx0c42a19e7731/device/vendor": "0x8086\n",
        "proc/net/dev": "Inter-|\n face |\nenx0c42a19e7731: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n",
        f"{disk}/size": "1000215216\n", f"{disk}/device/model": "Samsung SSD 980 of kowalczyk\n",
        f"{disk}/device/serial": "S5H9NS0NB12345K\n", f"{disk}/wwid": "eui.0025385b21409f6a\n",
        "sys/class/hwmon/hwmon9/name": "nvme_S5H9NS0NB12345K\n", "sys/class/hwmon/hwmon9/temp1_input": "41000\n",
        "sys/class/hwmon/hwmon9/temp1_label": "disk eui.0025385b21409f6a of kowalczyk@uni.example at 10.77.3.21\n",
        "sys/class/hwmon/hwmon9/S5H9NS0NB12345K_label": "5CD2109XYZ\n",
        "sys/class/devfreq/borealis-ws7.emc/governor": "fe80::e42:a1ff:fe9e:7731\n",
        "proc/self/mountinfo": (
            "22 1 259:2 / / rw - ext4 /dev/mapper/borealis--ws7-root rw\n"
            "23 22 0:42 / /mnt/secretproject rw - nfs4 filer.borealis:/export rw,addr=10.77.3.21,username=kowalczyk\n"
            "24 22 259:3 / /home/kowalczyk rw - ext4 /dev/nvme0n1p3 rw\n"
        ),
        "proc/self/mounts": "filer.borealis:/export /mnt/secretproject nfs4 rw,addr=10.77.3.21 0 0\n",
    })  # fmt: skip
    link = root / "sys/class/block/nvme0n1"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(root / disk, link.parent))
    return root


def gpu(
    index: int,
    name: str,
    capability: tuple[int, int],
    watts: float,
    *,
    limits_w: tuple[int, int] | None = None,
    module_w: float | None = None,
    board: int | None = None,
    has_counter: bool = True,
    is_module_only: bool = False,
    c2c: bool = False,
) -> dict[str, Any]:
    """The calls of a GPU with constant power, whose counter is renewed every 0.1 s."""
    calls: dict[str, Any] = {
        "Name": name, "Index": index, "MinorNumber": index, "UUID": UUID.format(index),
        "Serial": SERIAL.format((index if board is None else board) + 1),
        "CudaComputeCapability": {"tuple": list(capability)},
        "UtilizationRates": {"gpu": 87, "memory": 41}, "CurrentClocksThrottleReasons": 0,
        "PciInfo": {"busId": f"00000000:{index + 1:02X}:00.0"},
    }  # fmt: skip
    outcomes: dict[str, Any] = {f"nvmlDeviceGet{call}()": {"result": value} for call, value in calls.items()}
    outcomes |= {"nvmlDeviceGetClockInfo(1)": {"result": 1410}, "nvmlDeviceGetTemperature(0)": {"result": 61}}
    if limits_w:
        bounds = [1000 * limit for limit in limits_w]
        outcomes["nvmlDeviceGetPowerManagementLimit()"] = {"result": bounds[1]}
        outcomes["nvmlDeviceGetPowerManagementLimitConstraints()"] = {"result": {"tuple": bounds}}
    if not is_module_only:
        outcomes["nvmlDeviceGetPowerUsage()"] = {"result": round(1000 * watts)}
        outcomes["nvmlDeviceGetFieldValues(186, 0)"] = field(watts)
    if module_w:
        outcomes["nvmlDeviceGetFieldValues(186, 1)"] = field(module_w)
    if c2c:
        outcomes["nvmlDeviceGetC2cModeInfoV()"] = {"result": {"isC2cEnabled": 1}}
    counted_w = module_w if is_module_only else watts
    ticks = range(round(DURATION_S / TICK_S) + 1)
    counted = [{"result": 4_000_000_000 + round(1000 * TICK_S * tick * (counted_w or 0))} for tick in ticks]
    series = {"times_s": [round(TICK_S * tick, 3) for tick in ticks], "values": counted}
    energy = "nvmlDeviceGetTotalEnergyConsumption()"
    outcomes[energy] = counted[0] if has_counter else NOT_SUPPORTED
    return {"calls": outcomes, "series": {energy: series} if has_counter else {}}


def field(watts: float) -> dict[str, Any]:
    return {"result": [{"nvmlReturn": 0, "value": {"uiVal": round(1000 * watts)}}]}


def pc(cpu: str, vendor: str = "GenuineIntel", cores: int = 8) -> dict[str, str]:
    """The files of an x86 machine that do not depend on its sensors."""
    listed = "".join(f"processor : {core}\nvendor_id : {vendor}\nmodel name : {cpu}\n\n" for core in range(cores))
    return {
        "proc/cpuinfo": listed, "proc/meminfo": "MemTotal: 65000000 kB\nMemAvailable: 40000000 kB\n",
        "proc/stat": "cpu  4000 10 1500 96000 5 7 8 0 0 0\ncpu0 2000 5 750 48000 3 4 4 0 0 0\n",
        "sys/class/hwmon/hwmon0/name": "coretemp\n" if vendor == "GenuineIntel" else "k10temp\n",
        "sys/class/hwmon/hwmon0/temp1_input": "52000\n",
    }  # fmt: skip


def nvidia_pc(root: Path, *models: str, cpu: str = "Intel(R) Xeon(R) Platinum 8480C") -> None:
    put(root, pc(cpu))
    for index, model in enumerate(models):
        text = f"Model: \t\t {model}\nGPU UUID: \t {UUID.format(index)}\nDevice Minor: \t {index}\n"
        put(root, {f"proc/driver/nvidia/gpus/0000:{index + 1:02x}:00.0/information": text})


def grace(root: Path, *models: str) -> None:
    """Grace's cores are Neoverse V2 of ARM (GB10: others)."""
    nvidia_pc(root, *models)
    cores = "".join(f"processor : {core}\nCPU implementer : 0x41\nCPU part : 0xd4f\n\n" for core in range(4))
    put(root, {"proc/cpuinfo": cores})


def amd_gpus(root: Path, count: int, device: str, watts: int, limit_w: int, cpu: str) -> None:
    """AMD GPUs by the files of amdgpu: hwmon in microwatts (the kernel's Documentation/gpu/amdgpu/thermal.rst)."""
    put(root, pc(cpu, "AuthenticAMD"))
    for index in range(count):
        bus, unique = f"0000:{index + 0xC1:02x}:00.0", 0x1F25E6FA38FDC9E1 + index
        card = f"sys/class/drm/card{index}/device"
        location = (index + 0xC1) << 8
        put(root, {
            f"{card}/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={bus}\n", f"{card}/device": f"{device}\n",
            f"{card}/unique_id": f"{unique:016x}\n", f"{card}/gpu_busy_percent": "93\n",
            f"{card}/hwmon/hwmon{index + 4}/power1_input": f"{watts}000000\n",
            f"{card}/hwmon/hwmon{index + 4}/power1_cap": f"{limit_w}000000\n",
            f"{card}/hwmon/hwmon{index + 4}/power1_cap_max": f"{limit_w}000000\n",
            f"{card}/hwmon/hwmon{index + 4}/power1_cap_min": "0\n",
            f"sys/class/kfd/kfd/topology/nodes/{index + 1}/name": "gfx942\n",
            f"sys/class/kfd/kfd/topology/nodes/{index + 1}/properties": (
                f"simd_count 1216\nlocation_id {location}\ndomain 0\nunique_id {unique}\n"
            ),
        })  # fmt: skip


def cray(root: Path) -> None:
    """A node of a Cray EX with four MI250X: HPE's pm_counters (HPE Cray EX System Monitoring; LUMI's user guide).

    Each file of power and energy has a value, its unit, and the time in microseconds.
    """
    amd_gpus(root, 1, "0x7408", 280, 560, "AMD EPYC 7A53 64-Core Processor")
    at = 1_652_188_021_414_866
    files = {
        "freshness": "212345",
        "generation": "17",
        "raw_scan_hz": "10",
        "startup": f"{at - 10**12}",
        "version": "2",
    }
    for name, watts in {"": 1450, "cpu_": 120, "memory_": 60, **{f"accel{n}_": 280 for n in range(4)}}.items():
        files |= {f"{name}power": f"{watts} W {at} us", f"{name}energy": f"{watts * 70_000} J {at} us"}
    put(root, {f"sys/cray/pm_counters/{name}": f"{text}\n" for name, text in files.items()})


ZONES_W = {"package": 40.0, "dram": 8.0, "core": 20.0, "uncore": 5.0, "psys": 100.0}


def rapl(root: Path, cpu: str, zones: Mapping[str, str], vendor: str = "GenuineIntel") -> None:
    """A machine with RAPL: zones of powercap by folder (the kernel's Documentation/power/powercap/powercap.rst)."""
    put(root, pc(cpu, vendor))
    for number, (folder, name) in enumerate(zones.items(), 1):
        Board(root).zone(folder, name, joules=COUNTER_RANGE_J * number / 10)


@contextmanager
def counting(root: Path) -> Iterator[None]:
    """Let each RAPL counter below a root count `ZONES_W`, every millisecond, until the block ends."""
    zones = {file: file.with_name("name").read_text() for file in root.glob("sys/class/powercap/*/energy_uj")}
    counters = {
        str(file): (int(file.read_text()), ZONES_W[name.strip().partition("-")[0]]) for file, name in zones.items()
    }
    new, ended, begun_s = root.with_name("counter"), threading.Event(), time.monotonic()

    def count() -> None:
        while counters and not ended.wait(0.001):
            for file, (first_uj, watts) in counters.items():
                new.write_text(f"{first_uj + round(1e6 * watts * (time.monotonic() - begun_s))}\n")
                new.replace(file)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def jetson(name: str, layout: str) -> Machine:
    """A board of `boards.py`, which has the sources of its labels."""
    board = boards.BOARDS[name]
    device = "jetson" if name in boards.WITHOUT_TABLE else name
    return Machine(device, lambda root: boards.write(root, name, layout), watts=board.total_w())


H100 = gpu(0, "NVIDIA H100 80GB HBM3", (9, 0), 412.5, limits_w=(200, 700))
A100 = gpu(0, "NVIDIA A100-SXM4-80GB", (8, 0), 251.0, limits_w=(100, 400))
GH200 = gpu(0, "NVIDIA GH200 480GB", (9, 0), 0.0, module_w=600.0, is_module_only=True, c2c=True)
GB10 = gpu(0, "NVIDIA GB10", (12, 1), 60.0, c2c=True)
PAIR: dict[str, Any] = {"board": 0, "c2c": True, "limits_w": (200, 1400)}
GB300 = (
    gpu(0, "NVIDIA GB300", (10, 3), 180.29, module_w=487.68, **PAIR),
    gpu(1, "NVIDIA GB300", (10, 3), 176.26, module_w=487.68, **PAIR),
)
GB200 = (
    gpu(0, "NVIDIA GB200", (10, 0), 512.0, module_w=1234.0, has_counter=False, **PAIR),
    gpu(1, "NVIDIA GB200", (10, 0), 498.0, module_w=1234.0, has_counter=False, **PAIR),
)
XEONS = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "dram", "intel-rapl:1": "package-1", "intel-rapl:1:0": "dram"}
LAPTOP = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "uncore", "intel-rapl:1": "psys"}
EPYC = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core"}


def of_gpus(write: Callable[..., None], watts: float, *gpus: dict[str, Any]) -> Machine:
    """A machine with NVIDIA GPUs; `watts` is the energy per second of the first, which is used."""
    names = [gpu["calls"]["nvmlDeviceGetName()"]["result"] for gpu in gpus]
    return Machine("cuda", lambda root: write(root, *names), gpus, watts)


def of_cpu(model: str, zones: Mapping[str, str], watts: float, vendor: str = "GenuineIntel") -> Machine:
    return Machine("cpu", lambda root: rapl(root, model, zones, vendor), watts=watts)


MACHINES = {
    **{f"{name} {layout}": jetson(name, layout) for name, layout in boards.LAYOUTS},
    # limits of the SXM modules: NVIDIA's data sheets
    "H100": of_gpus(nvidia_pc, 412.5, H100),
    "A100": of_gpus(nvidia_pc, 251.0, A100),
    # one GPU per module, of which only the module's power is reported (NVIDIA's Grace Performance Tuning Guide)
    "GH200": of_gpus(grace, 600.0, GH200),
    # two GPUs per module; power of each and of the module, as in NVIDIA's captures of a GB300 tray (Zeus, pull 242)
    "GB300": of_gpus(grace, 180.29, *GB300),
    "GB200": of_gpus(grace, 512.0, *GB200),
    # NVLink-C2C, and only the power of the GPU, without limits (Zeus, pull 242)
    "GB10": of_gpus(grace, 60.0, GB10),
    # 750 W (AMD's data sheet of MI300X); device ID of the kernel's amdgpu_drv.c
    "MI300X": Machine("rocm", lambda root: amd_gpus(root, 2, "0x74a1", 640, 750, "AMD EPYC 9654"), watts=640.0),
    "Cray EX": Machine("rocm", cray, watts=280.0),
    "two Xeons": of_cpu("Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz", XEONS, 96.0),
    "EPYC": of_cpu("AMD EPYC 7543 32-Core Processor", EPYC, 40.0, "AuthenticAMD"),
    "laptop": of_cpu("13th Gen Intel(R) Core(TM) i7-1365U", LAPTOP, 40.0),
}
