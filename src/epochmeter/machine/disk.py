"""The storage device of a folder: the block devices that count its reads, and the type of the device.

Partitions, LVM, LUKS and RAID are followed to the physical disks, overlays to their own storage.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from epochmeter.machine.sysfs import drop_empty, read_text
from epochmeter.shared.types import Document

MEMORY_FILESYSTEMS = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
NETWORK_FILESYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "9p", "virtiofs", "glusterfs", "beegfs", "gpfs",
    "afs", "pvfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone",
}  # fmt: skip
VIRTUAL_DISK = re.compile(r"/(virtio\d+|vbd-\d+|VMBUS:\d+|vmbus_\d+)/|/(vd|xvd)[a-z]+$")  # in sysfs
VIRTUAL_MODEL = re.compile(r"QEMU|VMware|VBOX|Msft|Google|Elastic Block Stor|nvme_card-pd|NVMe Accelerator")
"""Vendors and models of virtual disks: of QEMU, VMware, VirtualBox, Hyper-V, Google, AWS and Alibaba, and Azure. The
local NVMe disks of these clouds have other names."""
NETWORK_DISK = re.compile(r"/(session\d+|rport-[-:\d]+)/|/(nbd|rbd|drbd)\d+$")  # in sysfs: iSCSI, Fibre Channel, others
NVME_FABRICS = {"tcp", "rdma", "fc", "loop"}  # transports of NVMe disks that are outside of the machine
HIDDEN_NAME = re.compile(r"(/.+)/user\d+(?:/|$)")  # a mount point in a recording (recorded/identifiers.py)
SATISFYING_MEDIA = {"nvme": {"nvme"}, "ssd": {"nvme", "ssd"}, "sd": {"sd"}, "hdd_usb": {"hdd_usb"}, "ram": {"ram"}}
"""Media that satisfy a configured medium; any other medium is satisfied by itself only."""


class Mount(NamedTuple):
    """A line of the mount table."""

    number: str  # of the device, `major:minor`
    subfolder: str  # folder of the file system that is mounted: `/`, or another for a bind mount
    point: str
    filesystem: str
    source: str
    options: list[str]


class Disk(NamedTuple):
    devices: tuple[str, ...]
    """The narrowest block devices that count its file system's reads, such as nvme0n1p2 or dm-0."""
    medium: str
    """nvme, ssd, ssd_usb, hdd, hdd_usb, sd, emmc, ram, network, virtual (hidden by a hypervisor), or unknown."""
    filesystem: str
    reason: str | None = None  # why there is no device


@dataclass(frozen=True)
class ReadCounters:
    """Reads that a disk has completed since it was attached: their number and their bytes."""

    count: int
    bytes: int


def disk_of(folder: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> Disk:
    """Find the storage of a folder, or of its nearest existing parent."""
    place = Path(folder).absolute()
    existing = next(path for path in (place, *place.parents) if os.path.exists(path)).resolve()
    number = os.stat(existing).st_dev
    return disk_of_device(f"{os.major(number)}:{os.minor(number)}", existing, Path(root))


def recorded_disk_of(folder: str | os.PathLike[str], root: Path) -> Disk:
    """Find the storage that a folder has on a recorded machine, by the recorded mount table.

    Device numbers of this machine's files mean nothing there, so the path alone decides.
    """
    place = Path(os.path.abspath(folder))
    mount = _mount_of(None, place, root)
    if mount is None:
        return Disk((), "unknown", "unknown", "the recording has no mount table")
    hidden = [parent for other in _mounts(root) for parent in _hidden_parents(other.point)]
    if any(place.is_relative_to(parent) and not mount.point.startswith(f"{parent}/") for parent in hidden):
        return Disk((), "unknown", "unknown", f"the recording does not have the name of the mount point of {place}")
    if mount.filesystem == "overlay":
        return Disk((), "unknown", "overlay", "the layers of an overlay are not recorded")
    return _disk_of_mount(mount.number, mount, root)


def disk_of_device(number: str, folder: Path, root: Path) -> Disk:
    """Find the storage of a folder whose file system has the device number `major:minor`."""
    mount = _mount_of(number, folder, root)
    if mount and mount.filesystem == "overlay":
        return _overlay_disk(mount, folder, root)
    return _disk_of_mount(number, mount, root)


def _disk_of_mount(number: str, mount: Mount | None, root: Path) -> Disk:
    filesystem = mount.filesystem if mount else "unknown"
    if filesystem in MEMORY_FILESYSTEMS:
        return Disk((), "ram", filesystem, f"{filesystem} is in memory")
    if filesystem in NETWORK_FILESYSTEMS:
        return Disk((), "network", filesystem, f"{filesystem} is on a network")
    link = root / "sys/dev/block" / number
    if not link.exists() and mount and mount.source.startswith("/dev/"):  # btrfs has numbers of its own
        node = root / mount.source.lstrip("/")
        source = os.readlink(node) if node.is_symlink() else mount.source  # such as /dev/mapper/data
        link = root / "sys/class/block" / Path(source).name
    if not link.exists():
        return Disk((), "unknown", filesystem, f"{filesystem} has no block device")
    name = link.resolve().name
    devices = _btrfs_devices(name, root) if filesystem == "btrfs" else (name,)
    media = {_medium(path) for device in devices for path in _physical_disks(device, root)}
    return Disk(devices, media.pop() if len(media) == 1 else "unknown", filesystem)


def satisfies(medium: str, disk: Disk) -> bool:
    """Return whether a disk satisfies the medium that `storage=` configures."""
    return disk.medium in SATISFYING_MEDIA.get(medium, {medium})


def read_counters(disk: Disk) -> ReadCounters | None:
    """Read how many reads the devices have completed, by all processes; None if a device is missing."""
    try:  # nowrap would add the counts from before a device was removed
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
    except (OSError, ValueError, NotImplementedError):  # no table of them, or one that psutil cannot read
        return None
    if not disk.devices or not counters.keys() >= {*disk.devices}:
        return None
    parts = [counters[device] for device in disk.devices]
    return ReadCounters(sum(counts.read_count for counts in parts), sum(counts.read_bytes for counts in parts))


def describe(disk: Disk, root: str | os.PathLike[str] = "/") -> Document:
    """Describe a disk for the record; lists have one entry per physical disk, and unknown values are missing."""
    info = {"medium": disk.medium, "filesystem": disk.filesystem}
    if disk.reason:
        return {**info, "reason": disk.reason}
    physical = sorted({path for device in disk.devices for path in _physical_disks(device, Path(root))})
    properties = {
        "devices": list(disk.devices),
        "disks": [path.name for path in physical],
        "model": _texts(physical, "device/model") or _texts(physical, "device/name"),
        "scheduler": [re.sub(r".*\[(.*)\].*", r"\1", text) for text in _texts(physical, "queue/scheduler")],
        "read_ahead_kb": list(map(int, _texts(physical, "queue/read_ahead_kb"))),
        "size_bytes": [512 * int(text) for text in _texts(physical, "size")],
    }
    return {**info, **drop_empty(properties)}


def _overlay_disk(mount: Mount, folder: Path, root: Path) -> Disk:
    """Return the storage of the overlay layer that contains the folder: the upper one, or the first of the lower."""
    upper = [option.removeprefix("upperdir=") for option in mount.options if option.startswith("upperdir=")]
    lower = [option.partition("=")[2] for option in mount.options if option.startswith("lowerdir")]
    for layer in (*upper, *(path for paths in lower for path in re.split(r"(?<!\\):", paths))):
        candidate = Path(layer.replace("\\:", ":") + mount.subfolder, folder.relative_to(mount.point))
        if layer and os.path.isdir(candidate):
            return disk_of(candidate, root)
    return Disk((), "unknown", "overlay", "the layers of the overlay are not visible here")


def _btrfs_devices(name: str, root: Path) -> tuple[str, ...]:
    for devices in (root / "sys/fs/btrfs").glob("*/devices"):
        names = sorted(path.name for path in devices.iterdir())
        if name in names:
            return tuple(names)
    return (name,)


def _physical_disks(name: str, root: Path) -> list[Path]:
    """Return the physical disks, in sysfs, of a partition, a mapped device or an array."""
    block = (root / "sys/class/block" / name).resolve()
    disk = block.parent if (block / "partition").exists() else block
    return [path for slave in sorted(disk.glob("slaves/*")) for path in _physical_disks(slave.name, root)] or [disk]


def _medium(block: Path) -> str:
    name, model = block.name, " ".join(_texts([block], "device/vendor") + _texts([block], "device/model"))
    if name.startswith("nvme"):
        controllers = [block / "device", *block.glob("device/nvme*")]  # of itself, or of its paths
        if NVME_FABRICS.intersection(_texts(controllers, "transport")):
            return "network"
        return "virtual" if VIRTUAL_MODEL.search(model) else "nvme"
    if name.startswith("mmcblk"):
        return {"SD": "sd", "MMC": "emmc"}.get(read_text(block / "device/type"), "unknown")
    if NETWORK_DISK.search(str(block)):
        return "network"
    if VIRTUAL_DISK.search(str(block)) or VIRTUAL_MODEL.search(model):
        return "virtual"
    kind = {"0": "ssd", "1": "hdd"}.get(read_text(block / "queue/rotational"), "unknown")
    if kind == "unknown" or not name.startswith("sd"):
        return "unknown"
    if not re.search(r"/usb\d+/", str(block)):
        return kind
    # A removable disk is a stick or a card reader, whose `rotational` flag means nothing.
    return "unknown" if read_text(block / "removable") == "1" else f"{kind}_usb"


def _texts(paths: list[Path], inside: str) -> list[str]:
    return [text for path in paths if (text := read_text(path / inside))]


def _mount_of(number: str | None, folder: Path, root: Path) -> Mount | None:
    """Find the mount of a folder: the innermost one with the folder's device number, if that is known.

    Files of btrfs have the number of their subvolume, which the table lacks; then it is the innermost mount of all.
    """
    parents = [mount for mount in reversed(_mounts(root)) if folder.is_relative_to(mount.point)]
    candidates = [mount for mount in parents if mount.number == number] or parents
    return max(candidates, key=lambda mount: len(mount.point), default=None)  # the last mount at a point comes first


def _mounts(root: Path) -> list[Mount]:
    mounts = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        mount_fields, _, system = line.partition(" - ")
        mount_number, *paths = mount_fields.split(" ")[2:5]
        filesystem, source, options = [*system.split(" "), "", ""][:3]
        subfolder, point, source = map(_unescape, (*paths, source))
        decoded = [_unescape(option) for option in options.split(",")]
        mounts.append(Mount(mount_number, subfolder, point, filesystem, source, decoded))
    return mounts


def _hidden_parents(point: str) -> list[str]:
    """Return the folder of a mount point whose name a recording replaces, since it names a user."""
    found = HIDDEN_NAME.match(point)
    return [found[1]] if found else []


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)  # the kernel writes a blank as \040
