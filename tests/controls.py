"""Simulated settings of a machine: files below a root, and the programs of a board that change them.

The programs act on the files below the root; those that need root require `sudo` or root.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from stub import executable

CPU = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_{}_freq"
GPU = "sys/class/devfreq/17000000.gpu/{}_freq"
COUNTER_RANGE_J = 65_532.610987  # of a RAPL counter


class Mode(NamedTuple):
    number: int
    name: str
    cores: int
    mask: int | None = None  # TPC_PG_MASK; None: the board switches nothing of its GPU off


class Table:
    """A board's power modes, as NVIDIA ships them: `id name cores mask` of each mode."""

    def __init__(self, default: int, text: str) -> None:
        rows = [row.split() for row in text.split(", ")]
        self.default = default
        self.modes = [Mode(int(row[0]), row[1], int(row[2]), *map(int, row[3:])) for row in rows]


TABLES = {
    "nano": Table(0, "0 MAXN 4, 1 5W 2"),
    "nx": Table(
        5,
        "0 MODE_15W_2CORE 2 1, 1 MODE_15W_4CORE 4 1, 2 MODE_15W_6CORE 6 1, 3 MODE_10W_2CORE 2 1, 4 MODE_10W_4CORE 4 1, "
        "5 MODE_10W_DESKTOP 4 1, 6 MODE_20W_2CORE 2 1, 7 MODE_20W_4CORE 4 1, 8 MODE_20W_6CORE 6 1",
    ),
    "agx": Table(
        7,
        "0 MAXN 8 0, 1 MODE_10W 2 5, 2 MODE_15W 4 0, 3 MODE_30W_ALL 8 0, 4 MODE_30W_6CORE 6 0, 5 MODE_30W_4CORE 4 0, "
        "6 MODE_30W_2CORE 2 0, 7 MODE_15W_DESKTOP 4 0",
    ),
    "orin_nano": Table(1, "0 15W 6 240, 1 25W 6 240, 2 MAXN_SUPER 6 240, 3 7W 4 252"),
    "agx_orin": Table(2, "0 MAXN 12 0, 1 MODE_15W 4 248, 2 MODE_30W 8 240, 3 MODE_50W 12 0"),
    # As a vendor of carrier boards may write it: with gaps in the numbers, and a mode without watts in its name.
    "gaps": Table(5, "2 QUIET 2 0, 5 MODE_15W 4 0, 9 MODE_20W_AI 4 0"),
}


def nvpmodel_conf(name: str) -> str:
    """The board's nvpmodel.conf: the settings with their files, the modes and the default."""
    modes = TABLES[name].modes
    cores = max(mode.cores for mode in modes)
    lines = ["# Power modes", "", "< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
    lines += [f"CORE_{core} /sys/devices/system/cpu/cpu{core}/online" for core in range(cores)]
    lines += ["", "<PARAM TYPE=FILE NAME=TPC_POWER_GATING>", "TPC_PG_MASK /sys/devices/gpu.0/tpc_pg_mask"]
    lines += ["", "< PARAM TYPE=CLOCK NAME=EMC >", "MAX_FREQ /sys/kernel/nvpmodel_emc_cap/emc_iso_cap"]
    for mode in modes:
        lines += ["", f"# {mode.name}: {mode.cores} cores", f"< POWER_MODEL ID={mode.number} NAME={mode.name} >"]
        lines += [f"CPU_ONLINE CORE_{core} {int(core < mode.cores)}" for core in range(cores)]
        lines += [f"TPC_POWER_GATING TPC_PG_MASK {mode.mask}"] * (mode.mask is not None)
        lines += [f"CPU_CARMEL MAX_FREQ {1_200_000 + 1_000 * mode.number}", f"GPU MAX_FREQ {510_000_000 + mode.number}"]
        lines += ["EMC MAX_FREQ 0 # no cap"]
    return "\n".join([*lines, "", "# the default mode", f"< PM_CONFIG DEFAULT={TABLES[name].default} >"])


NVPMODEL = """
now=$(sed -n 's/.*pmode:0*\\([0-9][0-9]*\\).*/\\1/p' "$ROOT/nvpmodel/status")
name() { sed -n "s/^$1 \\([^ ]*\\) .*/\\1/p" "$ROOT/nvpmodel/modes"; }
mask() { sed -n "s/^$1 [^ ]* \\(.*\\)/\\1/p" "$ROOT/nvpmodel/modes"; }
if [ "$1" = -q ]; then
    echo "NVPM WARN: fan mode is not set!"
    echo "NV Power Mode: $(name "$now")"
    echo "$now"
    exit
fi
root_only
[ -e "$ROOT/no_effect" ] && exit 0
if [ "$(mask "$now")" != "$(mask "$2")" ]; then
    echo "NVPM WARN: Golden image context is already created"
    echo "NVPM WARN: Reboot required for changing to this power mode: $2"
    echo "NVPM WARN: DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm:"
    read -r answer
    case $answer in YES|yes) touch "$ROOT/rebooted";; *) echo "NVPM ERROR: bad input!"; exit 0;; esac
fi
echo "pmode:000$2" > "$ROOT/nvpmodel/status.new"
mv "$ROOT/nvpmodel/status.new" "$ROOT/nvpmodel/status"
"""
JETSON_CLOCKS = """
root_only
cd "$ROOT" || exit
lows=$(ls sys/devices/system/cpu/cpu*/cpufreq/scaling_min_freq sys/class/devfreq/*/min_freq)
case $1 in
--store)
    if [ -e "$2" ]; then echo "File $2 already exists. Can I overwrite it? Y/N:"; read -r answer || exit 1; fi
    for low in $lows; do echo "$low:$(cat "$low")"; done > "$2";;
--restore)
    [ -e "$2" ] || { echo "Error: restore file $2 not found!"; exit 1; }
    [ -e no_effect ] || while IFS=: read -r low value; do echo "$value" > "$low"; done < "$2";;
--show) ;;
*)
    [ -e no_effect ] || for low in $lows; do cat "$(echo "$low" | sed 's/min_freq/max_freq/')" > "$low"; done;;
esac
"""
SYSTEMCTL = """
service="$ROOT/nvfancontrol"
case $1 in
is-active) if [ -e "$service" ]; then echo active; else echo inactive; exit 3; fi;;
start) root_only; [ -e "$ROOT/no_effect" ] || { touch "$service"; echo 80 > "$ROOT/sys/class/hwmon/hwmon2/pwm1"; };;
stop) root_only; [ -e "$ROOT/no_effect" ] || rm -f "$service";;
esac
"""
SUDO = """
echo "sudo: unable to resolve host board: Name or service not known" >&2
[ "$1" = -n ] || { echo "sudo: a terminal is required" >&2; exit 1; }
shift
[ -e "$ROOT/no_sudo" ] && { echo "sudo: a password is required" >&2; exit 1; }
[ "$1" = tee ] && chmod u+w "$2"
AS_ROOT=1 "$@"
"""


class Board:
    """A machine below `root`, with its programs in a folder for the PATH."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs = root, root / "bin"

    def put(self, **files: object) -> None:
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(f"{text}\n")

    def read(self, path: str) -> str:
        return (self.root / path).read_text().strip()

    def program(self, name: str, script: str) -> None:
        """Write a program; its shell function `root_only` ends it unless sudo or AS_ROOT makes the user root."""
        guard = '[ -n "$AS_ROOT" ] || { echo "Error: root only"; exit 1; }'
        self.programs.mkdir(parents=True, exist_ok=True)
        executable(self.programs / name, f"#!/bin/sh\nROOT='{self.root}'\nroot_only() {{ {guard}; }}\n{script}")

    def with_modes(self, name: str, current: int | None = None) -> Board:
        """A board's power modes, at its default or another, and nvpmodel."""
        listed = "\n".join(f"{mode.number} {mode.name} {mode.mask}" for mode in TABLES[name].modes)
        status = f"pmode:{TABLES[name].default if current is None else current:04}"
        self.put(**{"etc/nvpmodel.conf": nvpmodel_conf(name), "nvpmodel/modes": listed, "nvpmodel/status": status})
        (self.root / "var/lib").mkdir(parents=True, exist_ok=True)
        (self.root / "var/lib/nvpmodel").symlink_to(self.root / "nvpmodel")
        self.program("nvpmodel", NVPMODEL)
        return self

    def mode(self) -> int:
        return int(self.read("nvpmodel/status").removeprefix("pmode:"))

    def with_clocks(self) -> Board:
        """Two cores and a GPU whose clocks may go up and down, and jetson_clocks."""
        for core in (0, 1):
            self.put(**{CPU.format(core, "min"): 115200, CPU.format(core, "max"): 1510400})
        self.put(**{GPU.format("min"): 306000000, GPU.format("max"): 624750000})
        other = "sys/class/devfreq/15480000.gpu-nvd-0"
        self.put(**{f"{other}/min_freq": 1, f"{other}/max_freq": 2})
        self.program("jetson_clocks", JETSON_CLOCKS)
        return self

    def with_kernel_fan(self) -> Board:
        """A fan that the kernel sets by temperature, as on JetPack 4."""
        self.put(**{"sys/devices/pwm-fan/target_pwm": 77, "sys/devices/pwm-fan/temp_control": 1})
        return self

    def with_service_fan(self) -> Board:
        """A fan that nvfancontrol sets by temperature, as on JetPack 5 and later."""
        self.put(**{"sys/class/hwmon/hwmon1/name": "ina3221", "sys/class/hwmon/hwmon2/name": "pwmfan"})
        self.put(**{"sys/class/hwmon/hwmon2/pwm1": 77, "nvfancontrol": "active"})
        self.put(**{"etc/nvfancontrol.conf": "<FAN 1>\n\tFAN_DEFAULT_CONTROL close_loop\n\tFAN_DEFAULT_PROFILE quiet"})
        self.program("systemctl", SYSTEMCTL)
        return self

    def with_rapl(self, packages: int = 2) -> Board:
        """CPU packages with a long-term limit of 95 W and 120 W at most, and limits of other zones."""
        for package in range(packages):
            self.zone(f"intel-rapl:{package}", f"package-{package}")
            self.zone(f"intel-rapl:{package}:0", "core")
        self.zone(f"intel-rapl:{packages}", "psys")
        self.zone("intel-rapl-mmio:0", "package-0")
        return self

    def zone(self, folder: str, name: str, joules: float = 1e-6) -> None:
        """Write a powercap zone with the given counter value."""
        files = {"name": name, "enabled": 1, "constraint_1_max_power_uw": 120_000_000}
        files |= {"max_energy_range_uj": round(COUNTER_RANGE_J * 1e6), "energy_uj": round(joules * 1e6)}
        for number, (term, watts) in enumerate({"short_term": 150, "long_term": 95, "peak_power": 200}.items()):
            files |= {f"constraint_{number}_name": term, f"constraint_{number}_power_limit_uw": watts * 1_000_000}
        self.put(**{f"sys/class/powercap/{folder}/{file}": value for file, value in files.items()})

    def ticks(self, *, busy: int, idle: int, cores: int = 4) -> None:
        """Write /proc/stat with busy and idle time of all cores together, in hundredths of a second."""
        times = f"{busy - 40} 10 15 {idle - 5} 5 7 8 900 300 0"  # 900 stolen, 300 of user for guests
        names = ["cpu ", *(f"cpu{core}" for core in range(cores))]
        self.put(**{"proc/stat": "".join(f"{name} {times}\n" for name in names) + "intr 12345"})

    def with_amdgpu(
        self, bus: str = "0000:03:00.0", device: str = "0x744c", unique_id: str = "", busy: int = 0, **sensors: object
    ) -> Board:
        card = f"sys/class/drm/card{len(list(self.root.glob('sys/class/drm/card*')))}/device"
        files = {"uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={bus}", "device": device, "unique_id": unique_id}
        files |= {"gpu_busy_percent": busy, "mem_busy_percent": busy // 2}
        sensors = {"power1_cap": 250_000_000, "power1_cap_min": 0, "power1_cap_max": 303_000_000, **sensors}
        files |= {f"hwmon/hwmon4/{name}": value for name, value in sensors.items()}
        self.put(**{f"{card}/{file}": value for file, value in files.items()})
        return self

    def on_path(self) -> str:
        """The PATH on which these programs stand before all others."""
        self.program("sudo", SUDO)
        return f"{self.programs}{os.pathsep}{os.environ['PATH']}"
