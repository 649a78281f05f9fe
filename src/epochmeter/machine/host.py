"""Description of the host, read below a root: `/`, or the recorded files of another board."""

import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from epochmeter.config.suggestions import list_choices, option_content
from epochmeter.config.validation import problems_of
from epochmeter.machine import jetson
from epochmeter.machine.gpus import find_gpus
from epochmeter.machine.recorded.root import root_folder, use_machine
from epochmeter.machine.sysfs import drop_empty, match_group, read_text
from epochmeter.shared.problem import InputError, input_error

PACKAGES = ("epochmeter", "hydra-core", "mlflow", "mlflow-skinny", "psutil", "zeus", "nvidia-ml-py", "jetson-stats")
GIT_LIMIT_S = 5
CRAY_COUNTERS = "sys/cray/pm_counters"  # the counters of the node's controller
MATCH_PRIORITY = ("board", "tegra", "cray", "gpu")  # the facts that a device is detected by, the most specific first
GOVERNORS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"
NVIDIA_DRIVER = r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)"
ARM_CORES = {
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
}
"""Names of the cores of Jetsons and Grace, by the implementer and part that ARM kernels report instead of a name."""


def describe(root: str | Path = "/", project: Path | None = None) -> dict[str, object]:
    """Describe the host, for `host.json`, with the git commit of a project, without properties that cannot be read."""
    root = root_folder(root)
    return drop_empty(
        {
            "hostname": read_text(root / "proc/sys/kernel/hostname"),
            "boot_id": read_text(root / "proc/sys/kernel/random/boot_id"),
            "board": _board(root),
            "cpu": _cpu(root),
            "memory_bytes": int(match_group(r"^MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo")) or 0) * 1024,
            "gpus": find_gpus(root),
            "driver": match_group(NVIDIA_DRIVER, read_text(root / "proc/driver/nvidia/version")),
            "governors": sorted({read_text(file) for file in root.glob(GOVERNORS)} - {""}),
            "clocks": jetson.clocks(root),
            **jetson.power_modes(root),
            "power_limits_w": _power_limits_w(root),
            "kernel": read_text(root / "proc/sys/kernel/osrelease"),
            "os": match_group(r'^PRETTY_NAME="?([^"\n]+)', read_text(root / "etc/os-release")),
            "l4t": jetson.l4t(root),
            "python": platform.python_version(),
            "packages": _packages(),
            "git": _git(project) if project else None,
        }
    )


def device_facts(root: str | Path = "/") -> dict[str, str | None]:
    """Collect the facts that a device's `match` is compared with.

    `board` has the board's names in the device tree, `tegra` the same for a Jetson, `gpu` the GPU's vendor, and `cray`
    the folder of a Cray node's counters.
    """
    root = use_machine(root)
    gpus, names = find_gpus(root), _board(root).get("compatible", "")
    tegra = names if "nvidia,tegra" in names else None
    cray = CRAY_COUNTERS if (root / CRAY_COUNTERS / "energy").exists() else None
    return {"board": names or None, "tegra": tegra, "cray": cray, "gpu": gpus[0]["vendor"] if gpus else None}


def is_match(match: Mapping[str, str] | None, facts: Mapping[str, str | None]) -> bool:
    """Whether all facts match their regular expressions; a device without `match` (None) never matches."""
    return match is not None and all(re.search(match[key], facts.get(key) or "") for key in match)


@cache
def device_matches() -> Mapping[str, Mapping[str, str] | None]:
    """Return for each device of conf/device the host facts that identify it; InputError for an invalid pattern."""
    matches = {option: option_content("device", option).get("match") for option in list_choices("device")}
    if problems := [problem for match in matches.values() for problem in problems_of("device.match", match)]:
        raise InputError(*problems)
    return matches


def detect_device(facts: Mapping[str, str | None]) -> str:
    """Return the device of conf/device that matches best: by its board, else its GPU, else one without conditions."""
    devices = device_matches()
    matching = [name for name, match in devices.items() if is_match(match, facts)]
    if not matching:
        raise input_error(f"device=auto: no device matches {dict(facts)}", f"name one: device={'|'.join(devices)}")
    # The board comes first, since a Jetson may also have the files of a desktop's NVIDIA driver.
    return max(matching, key=lambda name: [key in (devices[name] or {}) for key in MATCH_PRIORITY])


def device_of(root: str) -> str:
    """Return the device of conf/device that the machine is whose files are below a root."""
    return detect_device(device_facts(root))


def _board(root: Path) -> dict[str, str]:
    tree = root / "sys/firmware/devicetree/base"
    return drop_empty({"model": read_text(tree / "model"), "compatible": read_text(tree / "compatible")})


def _cpu(root: Path) -> dict[str, str | int]:
    listing = read_text(root / "proc/cpuinfo")
    cores = len(re.findall(r"^processor\s*:", listing, re.MULTILINE))
    # On ARM, `model name` is only the architecture.
    kinds = re.findall(r"^CPU implementer\s*:\s*(\S+).*?^CPU part\s*:\s*(\S+)", listing, re.MULTILINE | re.DOTALL)
    arm_cores = " + ".join(ARM_CORES.get(kind, "ARM core {}:{}".format(*kind)) for kind in dict.fromkeys(kinds))
    model = arm_cores or match_group(r"^(?:model name|Hardware)\s*:\s*(.+)", listing)
    return drop_empty({"model": model, "cores": cores})


def _power_limits_w(root: Path) -> dict[str, float]:
    """Return the long-term power limit of each CPU package in watts, from RAPL."""
    with suppress(OSError):
        limits = {read_text(limit.with_name("name")): read_text(limit) for limit in long_term_limits(root)}
        return {name: int(uw) / 1e6 for name, uw in limits.items() if uw.isdigit()}
    return {}


def long_term_limits(root: Path) -> list[Path]:
    """List the files of each CPU package's long-term power limit, in microwatts; OSError if RAPL cannot be read."""
    limits = []  # without those of the platform (psys), and of the second interface to the packages (mmio)
    for constraint in sorted(root.glob("sys/class/powercap/intel-rapl:*/constraint_*_name")):
        is_of_package = re.match(r"package-\d", constraint.with_name("name").read_text())
        if is_of_package and constraint.read_text().strip() == "long_term":
            limits.append(constraint.with_name(constraint.name.replace("name", "power_limit_uw")))
    return [limit for limit in limits if limit.exists()]


@cache  # of this process, for all runs of a sweep
def _packages() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@cache
def git_commit(project: Path) -> str | None:
    """Return the git commit of a folder, read once per process; None if there is none."""
    commit = _git(project).get("commit")
    return str(commit) if commit else None


def _git(project: Path) -> dict[str, str | bool]:
    command = ["git", "--no-optional-locks", "-C", str(project), "status", "--porcelain=v2", "--branch"]
    try:
        status = subprocess.check_output(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, timeout=GIT_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return {}  # no git, no repository, or a timeout
    commit = match_group(r"^# branch\.oid ([0-9a-f]+)$", status)  # "(initial)": no commit
    return {"commit": commit, "dirty": bool(match_group(r"^([^#])", status))} if commit else {}
