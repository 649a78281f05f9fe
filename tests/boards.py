"""Replayed Jetsons: their files below a `machine.root`, with rails of known power.

Labels, chips, shunts and totals are those of the real boards; the watts are made up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from project import put

SHUNT_STEP_UV, BUS_STEP_MV = 40, 8  # resolution of an INA3221
CONFIG = 0x7607  # of an INA3221 with JetPack 4: 64 samples of (140 + 140) us on each of 3 channels
WIDTH = 12  # of a file that is rewritten in place, so that it overwrites a longer number


class Rail(NamedTuple):
    """A channel and its approximate power at the board's normal load."""

    label: str
    watts: float
    volts: float = 5.0
    shunt_mohm: int = 5

    def shown(self, share: float = 1.0) -> tuple[int, int]:
        """Millivolts and milliamperes at a fraction of its watts, in the resolution of the chip."""
        step_ma = SHUNT_STEP_UV / self.shunt_mohm
        bus_mv = round(self.volts * 1000 / BUS_STEP_MV) * BUS_STEP_MV
        return bus_mv, round(round(1e6 * self.watts * share / bus_mv / step_ma) * step_ma)


class Chip:
    """A power monitor: its bus address, and its channels in order, as `label watts` of each or `label watts volts`."""

    def __init__(
        self, address: str, rails: str, volts: float = 5.0, shunt_mohm: int = 5, name: str = "ina3221"
    ) -> None:
        self.address, self.name = address, name
        words = (rail.split() for rail in rails.split(", "))
        self.rails = [Rail(of[0], float(of[1]), float([*of, volts][2]), shunt_mohm) for of in words]


class Board(NamedTuple):
    """A Jetson: its names in the device tree, the rails that add up to the module's power, its releases and chips."""

    model: str
    compatible: str
    total: str
    releases: Mapping[str, str]  # L4T release by layout of the sensor files: iio up to JetPack 4, hwmon from 5 on
    chips: tuple[Chip, ...]
    modes: str = "MAXN"

    @property
    def rails(self) -> dict[str, Rail]:
        """The connected channels by label."""
        return {rail.label: rail for chip in self.chips for rail in chip.rails if rail.label != "NC"}

    def shown_w(self, share: float = 1.0) -> dict[str, float]:
        """Watts of each rail as its files report them."""
        return {label: mv * ma / 1e6 for label, rail in self.rails.items() for mv, ma in [rail.shown(share)]}

    def total_w(self, share: float = 1.0) -> float:
        """The total power that a correct meter reads."""
        watts = self.shown_w(share)
        return sum(watts[label] for label in self.total.split())


RELEASES = {"iio": "R32 (release), REVISION: 7.4", "hwmon": "R35 (release), REVISION: 4.1"}
ORIN_RELEASE = {"hwmon": "R36 (release), REVISION: 4.3"}
ORIN = "VDD_IN 8, VDD_CPU_GPU_CV 3, VDD_SOC 1.5"
BOARDS = {
    "nano": Board(
        "NVIDIA Jetson Nano Developer Kit", "nvidia,p3449-0000-b00+p3448-0000-b00 nvidia,jetson-nano nvidia,tegra210",
        "POM_5V_IN", {"iio": RELEASES["iio"]}, (Chip("6-0040", "POM_5V_IN 5, POM_5V_GPU 2, POM_5V_CPU 1.2"),),
        "MAXN 5W",
    ),
    "nx": Board(
        "NVIDIA Jetson Xavier NX Developer Kit", "nvidia,p3509-0000+p3668-0000 nvidia,tegra194", "VDD_IN", RELEASES,
        (Chip("7-0040", ORIN),), "MODE_15W_2CORE MODE_15W_4CORE MODE_15W_6CORE",
    ),
    "agx": Board(
        "Jetson-AGX", "nvidia,p2822-0000+p2888-0001 nvidia,jetson-xavier nvidia,tegra194",
        "GPU CPU SOC CV VDDRQ SYS5V", RELEASES,
        (Chip("1-0040", "GPU 6, CPU 3, SOC 2.5", 19.0), Chip("1-0041", "CV 0.5, VDDRQ 1.5, SYS5V 3 5", 19.0)),
    ),
    "orin_nano": Board(
        "NVIDIA Jetson Orin Nano Developer Kit Super",
        "nvidia,p3768-0000+p3767-0005-super nvidia,p3767-0005 nvidia,tegra234", "VDD_IN", ORIN_RELEASE,
        (Chip("1-0040", ORIN),), "15W 25W MAXN_SUPER",
    ),
    "orin_nx": Board(
        "NVIDIA Jetson Orin NX Engineering Reference Developer Kit",
        "nvidia,p3768-0000+p3767-0000 nvidia,p3767-0000 nvidia,tegra234", "VDD_IN", ORIN_RELEASE,
        (Chip("1-0040", ORIN),),
    ),
    "agx_orin": Board(
        "NVIDIA Jetson AGX Orin Developer Kit", "nvidia,p3737-0000+p3701-0005 nvidia,p3701-0005 nvidia,tegra234",
        "VDD_GPU_SOC VDD_CPU_CV VIN_SYS_5V0", ORIN_RELEASE,
        (Chip("1-0040", "VDD_GPU_SOC 9, VDD_CPU_CV 4, VIN_SYS_5V0 5 5", 20.0, 2),
         Chip("1-0041", "NC 0.2, VDDQ_VDD2_1V8AO 1.1, NC 0.3", shunt_mohm=2)),
        "MAXN MODE_15W MODE_30W MODE_50W",
    ),
    "thor": Board(
        "NVIDIA Jetson AGX Thor Developer Kit", "nvidia,p4071-0000+p3834-0008 nvidia,p3834-0008 nvidia,tegra264",
        "VIN", {"hwmon": "R38 (release), REVISION: 2.0"},
        (Chip("2-0044", "VIN 45", 20.0, 2, "ina238"),
         Chip("2-0040", "VDD_GPU 20, VDD_CPU_SOC_MSS 9, VIN_SYS_5V0 8 5", 12.0, 2)),
    ),
    "tx2": Board(  # a board without a table in conf/device
        "quill", "nvidia,p2597-0000+p3310-1000 nvidia,quill nvidia,tegra186", "VDD_IN", {"iio": RELEASES["iio"]},
        (Chip("0-0040", "VDD_SYS_GPU 2, VDD_SYS_SOC 1, VDD_4V0_WIFI 0.2"),
         Chip("0-0041", "VDD_IN 7, VDD_SYS_CPU 1.5, VDD_SYS_DDR 0.8")),
    ),
    "tx2_nx": Board(  # the kernel's arch/arm64/boot/dts/nvidia/tegra186-p3509-0000+p3636-0001.dts
        "NVIDIA Jetson TX2 NX Developer Kit", "nvidia,p3509-0000+p3636-0001 nvidia,tegra186", "VDD_IN",
        {"iio": RELEASES["iio"]}, (Chip("3-0040", "VDD_IN 6, VDD_CPU_GPU 2.5, VDD_SOC 1.2"),),
    ),
}  # fmt: skip
WITHOUT_TABLE = ("tx2", "tx2_nx")  # in conf/device
LAYOUTS = [(name, layout) for name, board in BOARDS.items() for layout in board.releases]
"""Every board in each of its layouts."""


class Tree(NamedTuple):
    """A board written below a root."""

    root: Path
    board: Board
    layout: str
    hwmon: int

    def channels(self, share: float = 1.0) -> Iterator[tuple[str, dict[Path, str]]]:
        """Yield each channel's label and the contents of its power files at a fraction of the board's watts."""
        for index, chip in enumerate(self.board.chips):
            for channel, rail in enumerate(chip.rails):
                readings = _readings(chip.name, channel, self.layout, *rail.shown(share))
                folder = self.folder(index)
                yield rail.label, {folder / name: f"{value}".ljust(WIDTH, "\n") for name, value in readings.items()}

    def files(self, label: str) -> list[Path]:
        """The power files of a rail."""
        return [path for name, files in self.channels() if name == label for path in files]

    def show(self, share: float) -> float:
        """Set every rail to a fraction of its watts, in place, since files are read meanwhile; return the total."""
        for _, files in self.channels(share):
            for path, text in files.items():
                with path.open("r+" if path.exists() else "w") as file:
                    file.write(text)
        return self.board.total_w(share)

    def folder(self, index: int) -> Path:
        """The folder of a chip's files."""
        device = self.root / "sys/bus/i2c/devices" / self.board.chips[index].address
        return device / (f"iio:device{index}" if self.layout == "iio" else f"hwmon/hwmon{self.hwmon + index}")


def write(root: Path, name: str, layout: str | None = None, *, hwmon: int = 3) -> Tree:
    """Write a board below `root`; `hwmon` is the number of its first chip, which differs from boot to boot."""
    board = BOARDS[name]
    tree = Tree(root, board, layout or list(board.releases)[-1], hwmon)
    # The third chip is no power monitor.
    put(root, {**_machine(board, tree.layout), "sys/bus/i2c/devices/0-0050/name": "24c02\n"})
    for index, chip in enumerate(board.chips):
        driver, device = chip.name + ("x" if tree.layout == "iio" else ""), root / "sys/bus/i2c/devices" / chip.address
        put(device, {"name": f"{driver}\n"})
        _link(root / "sys/bus/i2c/drivers" / driver / chip.address, device)
        put(tree.folder(index), {file: f"{text}\n" for file, text in _other_files(chip, tree.layout).items()})
        if tree.layout == "hwmon":
            _link(root / "sys/class/hwmon" / tree.folder(index).name, tree.folder(index))
        else:
            set_cell(device / "of_node/ti,continuous-config", CONFIG)
            for channel, rail in enumerate(chip.rails):
                set_cell(device / f"of_node/channel@{channel}/ti,shunt-resistor-mohm", rail.shunt_mohm)
    tree.show(1.0)
    return tree


def set_cell(file: Path, value: int) -> None:
    """Write a number as a property of the device tree."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(value.to_bytes(4, "big"))


def _readings(chip: str, channel: int, layout: str, bus_mv: int, current_ma: int) -> dict[str, int]:
    """A channel's files: iio has mV, mA and mW, numbered from 0; hwmon mV and mA, from 1; an INA238 also microwatts."""
    if layout == "iio":
        values = {"voltage": bus_mv, "current": current_ma, "power": bus_mv * current_ma // 1000}
        return {f"in_{quantity}{channel}_input": value for quantity, value in values.items()}
    values = {f"in{channel + 1}_input": bus_mv, f"curr{channel + 1}_input": current_ma}
    return values | ({"power1_input": bus_mv * current_ma} if chip == "ina238" else {})


def _other_files(chip: Chip, layout: str) -> dict[str, object]:
    """Other files of a chip: labels, limits, and shunt voltages, which look like rails."""
    if chip.name == "ina238":
        return {"name": chip.name, "in0_input": 8, "temp1_input": 41_000}  # it has no label
    if layout == "iio":
        limits = {f"crit_current_limit_{channel}": "32760 ma" for channel in range(len(chip.rails))}
        return {**limits, **{f"rail_name_{channel}": rail.label for channel, rail in enumerate(chip.rails)}}
    files: dict[str, object] = {"name": chip.name, "samples": 1, "update_interval": 0}
    for channel, rail in enumerate(chip.rails, 1):
        shunt_uv = rail.shown()[1] * rail.shunt_mohm
        files |= {f"in{channel}_label": rail.label, f"in{channel}_enable": 1, f"in{channel + 3}_input": shunt_uv}
        files |= {f"curr{channel}_max": 32_760, f"shunt{channel}_resistor": rail.shunt_mohm * 1000}
    return files | {"in7_input": 99, "in7_label": "sum of shunt voltages"}


def _machine(board: Board, layout: str) -> dict[str, str]:
    """The files of a Jetson that do not depend on its rails: names, settings, load and temperatures."""
    tree = "sys/firmware/devicetree/base"
    modes = "".join(f"< POWER_MODEL ID={number} NAME={name} >\n" for number, name in enumerate(board.modes.split()))
    gpu = "sys/class/devfreq/" + ("57000000.gpu" if board is BOARDS["nano"] else "17000000.gpu")
    files = {
        f"{tree}/model": f"{board.model}\0",
        f"{tree}/compatible": board.compatible.replace(" ", "\0") + "\0",
        "etc/nv_tegra_release": f"# {board.releases[layout]}, GCID: 1, BOARD: generic, EABI: aarch64, DATE: then\n",
        "etc/nvpmodel.conf": f"{modes}< PM_CONFIG DEFAULT=0 >\n",
        "var/lib/nvpmodel/status": "pmode:0000 fmode:quiet\n",
        "proc/stat": "cpu  4000 10 1500 96000 5 7 8 0 0 0\ncpu0 2000 5 750 48000 3 4 4 0 0 0\n",
        "proc/meminfo": "MemTotal:        7802000 kB\nMemFree:         5000000 kB\nMemAvailable:    6000000 kB\n",
        f"{gpu}/cur_freq": "612000000\n",
        f"{gpu}/min_freq": "306000000\n",
        f"{gpu}/max_freq": "1020000000\n",
    }
    for number, (kind, celsius) in enumerate({"CPU-therm": 46.5, "GPU-therm": 44.0, "PMIC-Die": 100.0}.items()):
        zone = f"sys/class/thermal/thermal_zone{number}"
        files |= {f"{zone}/type": f"{kind}\n", f"{zone}/temp": f"{round(celsius * 1000)}\n"}
    for kind, khz in {"min": 115_200, "cur": 1_510_400, "max": 1_510_400}.items():
        files[f"sys/devices/system/cpu/cpu0/cpufreq/scaling_{kind}_freq"] = f"{khz}\n"
    return files | {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n"}


def _link(path: Path, to: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(to, path.parent))
