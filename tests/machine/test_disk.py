"""Storage of a folder: on simulated sysfs and mount tables, and on this machine."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from project import put

from epochmeter.machine.disk import Disk, ReadCounters, describe, disk_of_device, read_counters, recorded_disk_of

PCI = "devices/pci0000:00"
NVME = f"{PCI}/0000:00:01.0/nvme/nvme0/nvme0n1"
MULTIPATH = "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
SATA = f"{PCI}/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
USB = f"{PCI}/0000:00:14.0/usb2/2-1/2-1:1.0/host4/target4:0:0/4:0:0:0/block/sdb"
ISCSI = "devices/platform/host6/session1/target6:0:0/6:0:0:0/block/sdc"
VIRTIO = f"{PCI}/0000:00:05.0/virtio2/block/vda"
CARD = "devices/platform/3400000.sdhci/mmc_host/mmc0/mmc0:aaaa/block/mmcblk0"
MAPPED = "devices/virtual/block/dm-0"


class Tree:
    """A simulated sysfs and mount table below a folder."""

    def __init__(self, root):
        self.root = root
        self.lines = []
        (root / "proc/self").mkdir(parents=True)

    def disk(self, path, number=None, slaves=(), **files):
        """Write a block device with its links; a partition is another path below its disk."""
        (place := self.root / "sys" / path).mkdir(parents=True, exist_ok=True)
        put(place, {name.replace("__", "/"): f"{text}\n" for name, text in files.items()})
        links = {f"class/block/{place.name}": place, **({f"dev/block/{number}": place} if number else {})}
        links |= {f"{path}/slaves/{Path(slave).name}": self.root / "sys" / slave for slave in slaves}
        for name, target in links.items():
            (self.root / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / "sys" / name).symlink_to(target)
        return self

    def mount(self, number, point, system, source="none", options="rw", within="/"):
        self.lines.append(f"25 1 {number} {within} {point} rw shared:1 - {system} {source} {options}")
        (self.root / "proc/self/mountinfo").write_text("\n".join(self.lines) + "\n")
        return self

    def find(self, number, folder="/media/data"):
        return disk_of_device(number, Path(folder), self.root)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("path", "facts", "medium"),
    [
        (NVME, {"device__model": "Samsung SSD 990 PRO 2TB"}, "nvme"),
        (NVME, {"device__model": "Amazon EC2 NVMe Instance Storage"}, "nvme"),
        (NVME, {"device__model": "Amazon Elastic Block Store"}, "virtual"),
        (NVME, {"device__model": "Linux", "device__transport": "tcp"}, "network"),
        (MULTIPATH, {"device__model": "Linux", "device__nvme0__transport": "rdma"}, "network"),
        (MULTIPATH, {"device__model": "Fast 1 TB", "device__nvme0__transport": "pcie"}, "nvme"),
        (SATA, {"queue__rotational": 0}, "ssd"),
        (SATA, {"queue__rotational": 1}, "hdd"),
        (USB, {"queue__rotational": 0}, "ssd_usb"),
        (USB, {"queue__rotational": 1, "removable": 0}, "hdd_usb"),
        (USB, {"queue__rotational": 1, "removable": 1}, "unknown"),  # a stick, or a card in a reader
        (CARD, {"queue__rotational": 0, "device__type": "SD"}, "sd"),
        (CARD, {"queue__rotational": 0, "device__type": "MMC"}, "emmc"),
        (VIRTIO, {"queue__rotational": 1}, "virtual"),
        (SATA, {"queue__rotational": 1, "device__vendor": "QEMU"}, "virtual"),
        (SATA, {"queue__rotational": 1, "device__vendor": "ATA", "device__model": "VBOX HARDDISK"}, "virtual"),
        (ISCSI, {"queue__rotational": 0}, "network"),
        (SATA, {}, "unknown"),
    ],
)
def test_medium_is_detected_by_sysfs(tree, path, facts, medium):
    tree.disk(path, "8:0", **facts).mount("8:0", "/media/data", "ext4")
    assert tree.find("8:0") == Disk((Path(path).name,), medium, "ext4")


def test_partition_and_lvm_on_luks_count_own_reads_on_the_medium_of_their_disk(tree):
    crypt = MAPPED.replace("dm-0", "dm-1")
    tree.disk(SATA, queue__rotational=0).disk(f"{SATA}/sda3", "8:3", partition="3")
    tree.disk(crypt, slaves=[f"{SATA}/sda3"]).disk(MAPPED, "253:0", slaves=[crypt])
    tree.mount("8:3", "/boot", "ext4").mount("253:0", "/", "xfs", "/dev/mapper/vg-data")
    assert tree.find("8:3", "/boot") == Disk(("sda3",), "ssd", "ext4")
    assert tree.find("253:0") == Disk(("dm-0",), "ssd", "xfs")


def test_all_devices_of_a_btrfs_count_its_reads(tree):
    other = SATA.replace("sda", "sdc")
    tree.disk(SATA, "8:0", queue__rotational=1).disk(other, "8:32", queue__rotational=1)
    pool = tree.root / "sys/fs/btrfs/aa-bb/devices"
    pool.mkdir(parents=True)
    for path in (SATA, other):
        (pool / Path(path).name).symlink_to(tree.root / "sys" / path)
    tree.mount("0:40", "/media/data", "btrfs", "/dev/sda", within="/@data").mount("0:41", "/", "xfs")
    for number in ("0:40", "0:42"):  # a subvolume's number is not in the table
        assert tree.find(number) == Disk(("sda", "sdc"), "hdd", "btrfs")


def test_file_system_without_a_block_device_has_a_reason(tree):
    for systems, medium, reason in (
        ("tmpfs ramfs", "ram", "is in memory"),
        ("nfs4 cifs lustre fuse.sshfs 9p", "network", "is on a network"),
        ("zfs fuse.bindfs proc", "unknown", "has no block device"),
    ):
        for system in systems.split():
            found = tree.mount("0:50", "/media/data", system, "server:/data").find("0:50")
            assert found == Disk((), medium, system, f"{system} {reason}")


@pytest.mark.parametrize(
    "options",
    [
        "lowerdir=/nowhere:{},upperdir={}/upper,workdir=/w",
        "lowerdir=/l1:{},upperdir=/u",
        "lowerdir+=/l1,lowerdir+={},lowerdir+=/l2",
    ],
)
def test_overlay_folder_has_the_storage_of_its_layer(tree, tmp_path, options):
    (tmp_path / "with, comma/data").mkdir(parents=True)
    (tmp_path / "with, comma/upper").mkdir()
    number = ":".join(str(part(os.stat(tmp_path).st_dev)) for part in (os.major, os.minor))
    tree.disk(NVME, number, queue__rotational=0).mount(number, "/", "ext4")
    layer = f"{tmp_path}/with\\054\\040comma"  # as the kernel writes it
    tree.mount("0:60", "/container", "overlay", "overlay", "rw," + options.format(layer, layer))
    assert tree.find("0:60", "/container/data") == Disk(("nvme0n1",), "nvme", "ext4")
    tree.mount("0:60", "/bound", "overlay", "overlay", "rw," + options.format(layer, layer), within="/elsewhere")
    assert tree.find("0:60", "/bound/data").medium == "unknown", "no layer has elsewhere/data"


def test_innermost_mount_is_used_and_blanks_are_decoded(tree):
    tree.mount("0:50", "/", "tmpfs").mount("0:50", "/media/my\\040card", "nfs")
    assert tree.find("0:50", "/media/my card/digits").medium == "network"
    assert tree.find("0:50", "/media/other").medium == "ram"


def test_folder_of_a_recording_has_the_storage_of_its_path_whatever_its_number_is_here(tree, tmp_path):
    here = ":".join(str(part(os.stat(tmp_path).st_dev)) for part in (os.major, os.minor))
    usb = f"{USB}/sdb1"
    tree.disk(SATA, here, queue__rotational=0)  # the number of this machine's disk is another one's there
    tree.disk(CARD, queue__rotational=0, device__type="SD").disk(f"{CARD}/mmcblk0p1", "179:1", partition="1")
    tree.disk(USB, queue__rotational=1, removable=0).disk(usb, "8:17", partition="1")
    tree.mount("179:1", "/", "ext4").mount("8:17", str(tmp_path), "ext4").mount("8:18", "/media/user1/disk", "ext4")
    assert recorded_disk_of("/nowhere", tree.root) == Disk(("mmcblk0p1",), "sd", "ext4")
    assert recorded_disk_of(tmp_path / "cifar10", tree.root) == Disk(("sdb1",), "hdd_usb", "ext4")
    hidden = recorded_disk_of("/media/maria/disk", tree.root)
    assert (hidden.medium, hidden.devices) == ("unknown", ()), "it may be the mount point whose name was replaced"
    tree.mount("0:60", "/container", "overlay", "overlay", f"rw,upperdir={tmp_path}")
    assert recorded_disk_of("/container", tree.root).medium == "unknown"


def test_recording_without_a_mount_table_has_unknown_storages(tmp_path):
    assert recorded_disk_of("/data", tmp_path) == Disk((), "unknown", "unknown", "the recording has no mount table")


def test_description_has_the_properties_of_the_physical_disks(tree):
    facts = {"queue__scheduler": "[mq-deadline] none", "queue__read_ahead_kb": "128", "size": "2048"}
    tree.disk(NVME, device__model="Fast 1 TB  ", **facts).disk(f"{NVME}/nvme0n1p1", "259:1", partition="1")
    tree.mount("259:1", "/", "ext4")
    assert describe(tree.find("259:1"), tree.root) == {
        "medium": "nvme", "filesystem": "ext4", "devices": ["nvme0n1p1"], "disks": ["nvme0n1"],
        "model": ["Fast 1 TB"], "scheduler": ["mq-deadline"], "read_ahead_kb": [128], "size_bytes": [1048576],
    }  # fmt: skip


def test_reads_are_summed_over_all_devices_and_absent_unless_all_have_counters(monkeypatch):
    counts = {"sda": (3, 100), "sda1": (2, 60), "sdb": (4, 1000)}
    read = {name: SimpleNamespace(read_count=count, read_bytes=size) for name, (count, size) in counts.items()}

    def counters(perdisk, nowrap):
        assert not nowrap, "psutil would add the counts from before a disk was attached again"
        if not read:
            raise NotImplementedError("no /proc/diskstats")
        return read

    monkeypatch.setattr(psutil, "disk_io_counters", counters)
    expected = {("sda1",): ReadCounters(2, 60), ("sda", "sdb"): ReadCounters(7, 1100), ("sda", "sdc"): None, (): None}
    assert {devices: read_counters(Disk(devices, "hdd", "btrfs")) for devices in expected} == expected
    read.clear()
    assert read_counters(Disk(("sda",), "hdd", "ext4")) is None
