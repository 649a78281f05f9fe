"""The disk that a folder lies on: which block devices count its reads, and what kind of medium they are.

A folder's file system is found in the table of mounts, its block device in sysfs; partitions, LVM, LUKS and RAID are
followed down to the physical disks, overlays and loop devices to what they lie on themselves.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from epochmeter.machine.mounts import Mount, mount_of

MEMORY = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "9p", "virtiofs", "glusterfs", "beegfs", "gpfs",
           "afs", "pvfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone"}  # fmt: skip
VIRTUAL = re.compile(r"/(virtio\d+|vbd-\d+|VMBUS:\d+|vmbus_\d+)/|/(vd|xvd)[a-z]+$")
"""Where sysfs has the disks of virtual machines, which all say that they rotate, or that none does."""
HYPERVISORS = {"QEMU", "VMware", "Msft", "VBOX", "Google"}
VIRTUAL_NVME = re.compile(r"Elastic Block Stor|QEMU|VMware|VBOX|nvme_card-pd|NVMe Accelerator")
"""The models of disks that only look like NVMe ones: AWS's and Alibaba's, QEMU's, VMware's, VirtualBox's, Google's,
Azure's. What those clouds have in the machine itself goes by other names."""
FABRICS = {"tcp", "rdma", "fc", "loop"}
"""By what a controller of an NVMe disk is reached that is not in the machine."""
SERVED = {"nvme": {"nvme"}, "ssd": {"nvme", "ssd"}, "sd": {"sd"}, "hdd_usb": {"hdd_usb"}, "ram": {"ram"}}
"""What may be used where a medium is asked for; any other medium is met by itself alone."""


class Disk(NamedTuple):
    """What a folder lies on."""

    devices: tuple[str, ...]
    """The narrowest block devices that count its file system's reads, such as nvme0n1p2 or dm-0."""
    medium: str
    """nvme, ssd, ssd_usb, hdd, hdd_usb, sd, emmc, ram, network, virtual (a hypervisor hides what), or unknown."""
    filesystem: str
    reason: str | None = None
    """Why there is no device."""


@dataclass(frozen=True)
class Reads:
    """Reads that a disk has completed since it was there."""

    count: int
    bytes: int


def disk_of(folder: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> Disk:
    """What a folder lies on; one that is not there yet will lie where its nearest parent does.

    `root` is where sysfs, the table of mounts and device nodes are found.
    """
    there = _existing(Path(folder))
    number = os.stat(there).st_dev
    return find(f"{os.major(number)}:{os.minor(number)}", there, Path(root))


def find(number: str, folder: Path, root: Path) -> Disk:
    """What a folder lies on whose file system has the number `major:minor`."""
    mount = mount_of(number, folder, root)
    filesystem = mount.filesystem if mount else "unknown"
    if filesystem in MEMORY:
        return Disk((), "ram", filesystem, f"{filesystem} lies in memory")
    if filesystem in NETWORK:
        return Disk((), "network", filesystem, f"{filesystem} lies on a network")
    if mount and filesystem == "overlay":
        return _overlaid(mount, folder, root)
    name = _named(root / "sys/dev/block" / number)
    if not name and mount and mount.source.startswith("/dev/"):  # btrfs has numbers of its own
        name = _named(root / "sys/class/block" / Path(_real(mount.source, root)).name)
    if not name:
        return Disk((), "unknown", filesystem, f"{filesystem} names no block device")
    devices = _pool(name, root) if filesystem == "btrfs" else (name,)
    media = {medium for device in devices for medium in _media(device, root)}
    return Disk(devices, media.pop() if len(media) == 1 else "unknown", filesystem)


def serves(asked: str, disk: Disk) -> bool:
    """Whether a disk is of the medium that `storage=` asked for."""
    return disk.medium in SERVED.get(asked, {asked})


def reads(disk: Disk) -> Reads | None:
    """The reads that its devices have completed, by whomever; None where there is no device, or not any more.

    A device that was taken out and put back begins at 0 again.
    """
    try:  # nowrap would add up, for as long as this process lives, what a device had counted before it was taken out
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    except (OSError, ValueError, NotImplementedError):  # no table of them here, or none that psutil can read
        return None
    told = [counters[device] for device in disk.devices if device in counters]
    if not told or len(told) < len(disk.devices):
        return None
    return Reads(sum(one.read_count for one in told), sum(one.read_bytes for one in told))


def describe(disk: Disk, root: str | os.PathLike[str] = "/") -> dict[str, Any]:
    """What there is to know of a disk, for the record; what is not told is left out."""
    facts: dict[str, Any] = {"medium": disk.medium, "filesystem": disk.filesystem}
    if disk.reason:
        return {**facts, "reason": disk.reason}
    physical = sorted({path for device in disk.devices for path in _physical(_block(device, Path(root)), Path(root))})
    facts.update(devices=list(disk.devices), disks=[path.name for path in physical])
    told = {
        "model": _texts(physical, "device/model") or _texts(physical, "device/name"),
        "scheduler": [re.sub(r".*\[(.*)\].*", r"\1", text) for text in _texts(physical, "queue/scheduler")],
        "read_ahead_kb": [int(text) for text in _texts(physical, "queue/read_ahead_kb")],
        "size_bytes": [512 * int(text) for text in _texts(physical, "size")],
    }
    return {**facts, **{key: values for key, values in told.items() if values}}


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if os.path.exists(path)).resolve()


def _overlaid(mount: Mount, folder: Path, root: Path) -> Disk:
    """What the layer of an overlay lies on that has the folder."""
    inside = folder.relative_to(mount.point)
    upper = [value for key, value in mount.options if key == "upperdir"]
    lower = [layer for key, value in mount.options if key == "lowerdir" for layer in re.split(r"(?<!\\):", value)]
    single = [value for key, value in mount.options if key == "lowerdir+"]  # how Linux >= 6.8 may name them
    for layer in (*upper, *lower, *single):
        place = Path(layer.replace("\\:", ":")) / inside
        if layer and os.path.isdir(place):
            return disk_of(place, root)
    return Disk((), "unknown", "overlay", "the layers of its overlay cannot be seen from here")


def _named(link: Path) -> str | None:
    return link.resolve().name if link.exists() else None


def _block(name: str, root: Path) -> Path:
    return (root / "sys/class/block" / name).resolve()


def _pool(name: str, root: Path) -> tuple[str, ...]:
    """All devices of the btrfs that a device is one of."""
    for devices in (root / "sys/fs/btrfs").glob("*/devices"):
        names = sorted(path.name for path in devices.iterdir())
        if name in names:
            return tuple(names)
    return (name,)


def _media(name: str, root: Path) -> set[str]:
    """The media of the physical disks below a block device."""
    return {_medium(path, root) for path in _physical(_block(name, root), root)}


def _physical(block: Path, root: Path) -> list[Path]:
    """The disks, in sysfs, that a partition, a mapped device or an array lies on."""
    if (block / "partition").exists():
        return _physical(block.parent, root)
    below = sorted((block / "slaves").iterdir()) if (block / "slaves").is_dir() else []
    return [path for slave in below for path in _physical(slave.resolve(), root)] or [block]


def _medium(block: Path, root: Path) -> str:
    name = block.name
    if name.startswith("loop"):
        backing = _text(block / "loop/backing_file")
        return disk_of(backing, root).medium if backing and os.path.exists(backing) else "unknown"
    if name.startswith("nvme"):
        return _nvme(block / "device")
    if name.startswith("mmcblk"):
        return {"SD": "sd", "MMC": "emmc"}.get(_text(block / "device/type") or "", "unknown")
    if name.startswith(("zram", "ram")):
        return "ram"
    if name.startswith(("nbd", "rbd", "drbd")):
        return "network"
    if VIRTUAL.search(str(block)) or _text(block / "device/vendor") in HYPERVISORS:
        return "virtual"
    kind = {"0": "ssd", "1": "hdd"}.get(_text(block / "queue/rotational") or "", "")
    if not kind or not name.startswith("sd"):
        return "unknown"
    if not re.search(r"/usb\d+/", str(block)):
        return kind
    # A stick, or a card in a reader, whatever it says of rotating.
    return "unknown" if _text(block / "removable") == "1" else f"{kind}_usb"


def _nvme(controller: Path) -> str:
    """The medium of an NVMe disk by its controller, or by what holds all the controllers that lead to it."""
    transports = _texts([controller, *controller.glob("nvme*")], "transport")
    if FABRICS & set(transports):
        return "network"
    return "virtual" if VIRTUAL_NVME.search(_text(controller / "model") or "") else "nvme"


def _real(source: str, root: Path) -> str:
    """The device node that a name such as /dev/mapper/data stands for."""
    node = root / source.lstrip("/")
    return os.readlink(node) if node.is_symlink() else source


def _texts(paths: list[Path], inside: str) -> list[str]:
    return [text for path in paths if (text := _text(path / inside))]


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
