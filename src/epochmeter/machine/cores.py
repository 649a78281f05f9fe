"""The processor cores that a run may use: by its affinity, and by the processor quota of its control group."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.platforms import allowed_cores
from epochmeter.machine.sysfs import read_text

ROOT = Path("/")
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def usable_cores(root: Path = ROOT) -> int:
    """Return the number of processor cores that this process may use; of a quota, the whole cores, at least one."""
    allowed = len(allowed_cores())
    quota = quota_cores(root)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def physical_cores(root: Path = ROOT) -> int:
    """Return the number of usable cores without the second hardware threads of a core, as far as Linux lists them."""
    siblings = {read_text(root / SIBLINGS.format(core)) or core for core in allowed_cores()}
    return min(len(siblings), usable_cores(root))


def quota_cores(root: Path = ROOT) -> float | None:
    """Return the cores' time per time that the control groups of this process may use; None without a quota."""
    quotas = [quota for group in control_groups("cpu", root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def control_groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folders of this process's control groups with a controller, of version 1 or 2, and of their parents."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            group = root / "sys/fs/cgroup" / controllers / name.lstrip("/")
            # In a container, its own group may be mounted as the topmost one.
            yield from (group, *group.parents)


def _quota(group: Path) -> float | None:
    """Return the quota of one control group in cores; None without one."""
    if limits := re.match(r"(\d+) (\d+)", read_text(group / "cpu.max")):  # version 2
        return int(limits[1]) / int(limits[2])
    quota, period = read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None  # no quota: -1
