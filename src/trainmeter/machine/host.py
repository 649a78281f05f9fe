"""What the machine is, read below a root: `/`, or the recorded tree of another board.

What cannot be read is left out, never made up.
"""

import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("hydra-core", "mlflow", "mlflow-skinny", "psutil", "zeus", "nvidia-ml-py", "jetson-stats")
GIT_LIMIT_S = 5


def describe(root: str | Path = "/", project: Path | None = None) -> dict[str, Any]:
    """The host as `host.json` keeps it; `project` is the folder whose git commit is told."""
    root = Path(root)
    found = {
        "hostname": _text(root / "proc/sys/kernel/hostname"),
        "boot_id": boot_id(root),
        "board": _board(root),
        "cpu": _cpu(root),
        "memory_bytes": _memory_bytes(root),
        "gpus": _gpus(root),
        "governors": sorted(set(_texts(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))),
        "power_mode": _power_mode(root),
        "kernel": _text(root / "proc/sys/kernel/osrelease"),
        "os": _found(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release")),
        "l4t": _l4t(root),
        "python": platform.python_version(),
        "packages": _packages(),
        "git": _git(project) if project else None,
    }
    return _present(found)


def facts(root: str | Path = "/") -> dict[str, str | None]:
    """What a device's `match` is held against: `board`, the device tree's names of it, `gpu`, the vendor."""
    root = Path(root)
    gpus = _gpus(root)
    return {"board": _board(root).get("compatible"), "gpu": gpus[0]["vendor"] if gpus else None}


def boot_id(root: str | Path = "/") -> str:
    """What tells one start of the machine from the next; empty where the kernel does not say."""
    return _text(Path(root) / "proc/sys/kernel/random/boot_id")


def fits(match: Mapping[str, str] | None, facts: Mapping[str, str | None]) -> bool:
    """Whether each fact is there and is as the regular expression says; no `match` at all fits nothing."""
    return match is not None and all(re.search(match[key], facts.get(key) or "") for key in match)


def detect(devices: Mapping[str, Mapping[str, str] | None], facts: Mapping[str, str | None]) -> str:
    """The name of the device that fits best: by its board, else by its GPU, else the one that asks nothing.

    The board goes first because a Jetson can have the files of a desktop's NVIDIA driver as well.
    """
    fitting = [name for name, match in devices.items() if fits(match, facts)]
    if not fitting:
        raise ValueError(f"device=auto: no device fits {dict(facts)}. Name one: device={'|'.join(devices)}.")
    return min(fitting, key=lambda name: _rank(devices[name] or {}))


def _rank(match: Mapping[str, str]) -> int:
    return next((rank for rank, key in enumerate(("board", "gpu")) if key in match), 2)


def _board(root: Path) -> dict[str, str]:
    for tree in (root / "sys/firmware/devicetree/base", root / "proc/device-tree"):
        names = {"model": _text(tree / "model"), "compatible": _text(tree / "compatible")}
        if any(names.values()):
            return _present(names)
    return {}


def _cpu(root: Path) -> dict[str, Any]:
    listing = _text(root / "proc/cpuinfo")
    cores = len(re.findall(r"^processor\s*:", listing, re.MULTILINE))
    return _present({"model": _found(r"^(?:model name|Hardware)\s*:\s*(.+)", listing), "cores": cores})


def _memory_bytes(root: Path) -> int:
    return int(_found(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo")) or 0) * 1024


def _gpus(root: Path) -> list[dict[str, str]]:
    nvidia = [
        {
            "vendor": "nvidia",
            "model": _found(r"^Model:\s*(.+)", _text(path)),
            "bus": path.parent.name,
            "minor": _found(r"^Device Minor:\s*(\d+)", _text(path)),
            "uuid": _found(r"^GPU UUID:\s*(GPU-[\da-f-]+)", _text(path)),
        }
        for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    ]
    amd = [
        {"vendor": "amd", "model": _text(node.with_name("name"))}
        for node in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"))
        if int(_found(r"^simd_count (\d+)", _text(node)) or 0)  # a node without is a CPU
    ]
    return [_present(gpu) for gpu in nvidia + amd]


def _power_mode(root: Path) -> dict[str, Any]:
    """nvpmodel's mode: its number, and the name that this board gives it."""
    number = _found(r"^pmode:(\d+)", _text(root / "var/lib/nvpmodel/status"))
    if not number:
        return {}
    name = _found(rf"POWER_MODEL\s+ID=0*{int(number)}\s+NAME=(\S+)", _text(root / "etc/nvpmodel.conf"))
    return {"id": int(number), **_present({"name": name})}


def _l4t(root: Path) -> str:
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", _text(root / "etc/nv_tegra_release"))
    return ".".join(found.groups()) if found else ""


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(project: Path) -> dict[str, Any]:
    try:
        commit = _run_git(project, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_run_git(project, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {}  # no git, no repository, no commit, or no answer in time


def _run_git(project: Path, *command: str) -> str:
    answer = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(project), *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GIT_LIMIT_S,
        check=True,
    )
    return answer.stdout.strip()


def _text(path: Path) -> str:
    """The file's text, its NULs as spaces; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def _texts(root: Path, pattern: str) -> list[str]:
    return [text for path in sorted(root.glob(pattern)) if (text := _text(path))]


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else ""


def _present(values: dict[str, Any]) -> dict[str, Any]:
    """What was found: empty text, 0 cores and no GPUs are what was not."""
    return {key: value for key, value in values.items() if value}
