"""Identifiers of a machine, its users and its network, and their replacement: always by the same one, in names too.

Some are known, since the machine states them: host and user names, serial numbers, UUIDs. Others are found by their
form. Names that are also ordinary words, such as a Jetson's user `nvidia` or host `nano`, are replaced only where they
can be nothing else, as after `/home/`, since the files contain these words with another meaning.
"""

import getpass
import ipaddress
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from epochmeter.machine.sysfs import match_group, read_text

HOST, USER, SERIAL, UUID, MAC, INTERFACE, ADDRESS, HEX = (
    *("host", "user", "serial", "uuid", "mac", "interface", "address", "hex"),
)
FORMS: Mapping[str, Callable[[int], str]] = {
    HOST: "host{}".format,
    USER: "user{}".format,
    SERIAL: "serial{}".format,
    UUID: "00000000-0000-0000-0000-{:012}".format,
    MAC: lambda number: f"02:00:00:00:{number >> 8 & 255:02x}:{number & 255:02x}",
    INTERFACE: "020000{:06}".format,
    ADDRESS: "192.0.2.{}".format,  # reserved for documentation
    HEX: "{:032}".format,
}
"""Kind of an identifier -> what replaces the one with a number, from 1 on."""
SERIAL_FILES = (
    *("sys/firmware/devicetree/base/serial-number", "sys/class/dmi/id/*serial*", "sys/class/dmi/id/*uuid*"),
    *("sys/class/block/*/device/serial", "sys/class/block/*/device/wwid", "sys/class/block/*/serial"),
    *("sys/class/block/*/wwid", "sys/class/block/*/uuid", "sys/class/block/*/dm/uuid", "sys/bus/usb/devices/*/serial"),
    *("sys/devices/soc0/serial_number", "sys/class/power_supply/*/serial_number", "sys/class/block/*/device/cid"),
    *("etc/machine-id", "var/lib/dbus/machine-id", "sys/class/net/*/address"),
)
PUBLIC_FILES = (
    *("sys/firmware/devicetree/base/model", "sys/firmware/devicetree/base/compatible", "etc/os-release"),
    *("etc/nv_tegra_release", "sys/class/dmi/id/product_name", "sys/class/dmi/id/sys_vendor"),
)
WORDS = {
    *("root", "user", "admin", "nvidia", "ubuntu", "debian", "fedora", "jetson", "tegra", "localhost", "localdomain"),
    *("nano", "xavier", "orin", "thor", "node", "host", "server", "login", "compute", "linux", "home", "data", "test"),
    *("gpu", "cpu", "amd", "intel", "none", "default", "nobody", "daemon", "slurm", "docker", "runner", "build"),
}
"""Names that are replaced only where they can be nothing else."""
MIN_NAME, MIN_SERIAL = 3, 5
"""Shortest name, and shortest serial number, that is replaced wherever it is."""
MEDIA_FOLDERS = ("sd", "sdcard", "card", "ssd", "hdd", "hdd_usb", "nvme", "usb", "disk", "data")
"""Mount points below /media that name a storage device, not a user: a replay finds the device by the path."""
USERS = range(1000, 65_534)  # IDs of people
NUMBERS = re.compile(r"[\s\d.+-]*")
"""A sensor's file, which may contain the digits of a serial number by chance."""
KEYED = re.compile(r"^([ \t]*[\w ]*\b(?:serial|pdi|host id)\b[\w ]*[ \t]*[:=][ \t]*)(?!N/A)(\S.*)$", re.I | re.M)
"""A line with a key that names an identifier, as in /proc/cpuinfo of ARM, and of nvidia-smi."""
NOT_MEDIA = rf"(?!(?<=/media/)(?:{'|'.join(MEDIA_FOLDERS)})(?![^/\s\\,:]))"
PATTERNS = (
    (UUID, re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.I)),
    (USER, re.compile(r"(?<![\w.])[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b", re.I)),
    (USER, re.compile(r"(?:(?<=/home/)|(?<=/media/)|(?<=/Users/))" + NOT_MEDIA + r"[^/\s\\,:]+")),
    (MAC, re.compile(r"(?<![0-9a-f:])[0-9a-f]{2}(?::[0-9a-f]{2}){5,}(?![0-9a-f:])", re.I)),
    (INTERFACE, re.compile(r"(?:(?<=\benx)|(?<=\bwlx)|(?<=\bwwx))[0-9a-f]{12}\b")),
    (SERIAL, re.compile(r"(?:(?<=\bnaa\.)|(?<=\beui\.)|(?<=\bwwn-0x))[0-9a-f]{12,}", re.I)),
    (HEX, re.compile(r"(?<![0-9a-z])(?=[0-9a-f]*[1-9a-f])[0-9a-f]{32,}(?![0-9a-z])", re.I)),
)
"""Forms of identifiers: UUIDs, e-mail addresses, home folders, addresses and names of interfaces, disks, others."""
IP_ADDRESS = re.compile(
    r"(?<![\w.:-])(?:(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)|[0-9a-f]*:[0-9a-f:]*:[0-9a-f:.]*(?![\w:]))", re.IGNORECASE
)
NETWORK = re.compile(r"^(?:nfs|cifs|smb|lustre|ceph|9p|virtiofs|gluster|beegfs|gpfs|afs|pvfs|fuse)")
"""File systems whose sources, options and mount points describe a network, or another user's program."""
MOUNT_TABLES = ("proc/self/mountinfo", "proc/self/mounts")
HOSTNAME_FILE, BOOT_ID_FILE = "proc/sys/kernel/hostname", "proc/sys/kernel/random/boot_id"


class Identifiers:
    """What replaces the identifiers of a machine: numbered by kind, in the order in which they are found.

    Args:
        known: Identifier -> its kind, for those that the machine states.
        fixed: Identifier -> what replaces it, for those that must keep a relation to each other.
    """

    def __init__(self, known: Mapping[str, str], fixed: Mapping[str, str] = {}) -> None:
        self._fixed = dict(fixed)
        self._known = {text.lower(): kind for text, kind in known.items()}
        self._stand_ins = {text.lower(): stand_in for text, stand_in in fixed.items()}
        self._counts: Counter[str] = Counter()
        listed = sorted({*self._known, *self._stand_ins}, key=len, reverse=True)
        texts = "|".join(map(re.escape, listed)) or r"(?!)"  # of none, a pattern that never matches
        self._listed = re.compile(rf"(?<![a-z0-9])(?:{texts})(?![a-z0-9])", re.IGNORECASE)

    def stand_in(self, kind: str, identifier: str) -> str:
        """Return what replaces an identifier, which is also replaced by its own stand-in."""
        text = identifier.lower()
        text = single if (single := text.replace("--", "-")) in self._known else text  # of a logical volume's name
        if text in self._stand_ins:
            return self._stand_ins[text]
        self._counts[kind] += 1
        stand_in = FORMS[kind](self._counts[kind])
        self._stand_ins[text] = self._stand_ins[stand_in.lower()] = stand_in
        return stand_in

    def replace(self, text: str) -> str:
        """Return a text, such as a path, with all identifiers replaced."""
        if NUMBERS.fullmatch(text):
            return self._fixed.get(text.strip(), text)
        text = KEYED.sub(lambda line: line[1] + self.stand_in(SERIAL, line[2].strip()), text)
        text = self._listed.sub(lambda found: self.stand_in(self._known.get(found[0].lower(), HOST), found[0]), text)
        for kind, pattern in PATTERNS:
            text = pattern.sub(lambda found, kind=kind: self.stand_in(kind, found[0]), text)  # type: ignore[misc]
        return IP_ADDRESS.sub(lambda found: self._address(found[0]), text)

    def replace_content(self, path: str, content: bytes) -> bytes:
        """Return the content of a file with all identifiers replaced; other bytes are unchanged."""
        text = content.decode("utf-8", "surrogateescape")
        if path == HOSTNAME_FILE:
            return f"{self.stand_in(HOST, text.strip())}\n".encode()
        if path in MOUNT_TABLES:
            text = "\n".join(without_network(line) for line in text.split("\n"))
        return self.replace(text).encode("utf-8", "surrogateescape")

    def _address(self, text: str) -> str:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # a PCI address, a time, a version
            return text
        return text if address.is_loopback or address.is_unspecified else self.stand_in(ADDRESS, text)


def find_identifiers(root: Path) -> Identifiers:
    """Find the identifiers that a machine states in its files below a root, and those of this process's user and host.

    Names that also occur in the names of the product are not replaced everywhere.
    """
    public = " ".join(text for pattern in PUBLIC_FILES for text in map(read_text, root.glob(pattern)))
    public += match_group(r"^model name\s*:(.*)", read_text(root / "proc/cpuinfo"))
    known = dict(_names(root, public.lower()))
    for text in _stated(root, SERIAL_FILES):
        if len(text) >= MIN_SERIAL and re.search(r"\d", text) and len({*text}) > 1:
            known[text] = MAC if re.fullmatch(r"[0-9a-f:]+", text) and ":" in text else SERIAL
    return Identifiers(known, _gpu_ids(root))


def without_network(line: str) -> str:
    """Return a line of a mount table without the source, the options and the place of a network's file system."""
    before, separator, system = line.partition(" - ")
    fields = system.split(" ") if separator else line.split(" ")
    kind = fields[0] if separator else fields[2] if len(fields) > 2 else ""
    if not NETWORK.match(kind):
        return line
    if not separator:
        return f"network /mnt/network {kind} rw 0 0"
    return f"{' '.join(before.split(' ')[:3])} / /mnt/network rw - {kind} network rw"


def _names(root: Path, public: str) -> Iterator[tuple[str, str]]:
    """Yield host and user names that are no ordinary words, with their kind."""
    hosts = {read_text(root / HOSTNAME_FILE), read_text(root / "etc/hostname"), socket.gethostname()}
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    with suppress(KeyError, OSError):
        users.add(getpass.getuser())
    for line in read_text(root / "etc/passwd").splitlines():
        name, _, number, _, person, *_ = [*line.split(":"), "", "", "", ""][:6]
        if number.isdigit() and int(number) in USERS:
            users |= {name, person.partition(",")[0]}
    for kind, names in ((HOST, {part for host in hosts for part in (host, host.partition(".")[0])}), (USER, users)):
        for name in names:
            is_word = name.lower() in WORDS or name.isdigit() or len(name) < MIN_NAME
            if not is_word and not re.search(rf"(?<![a-z0-9]){re.escape(name.lower())}(?![a-z0-9])", public):
                yield name, kind
                yield name.replace("-", "--"), kind  # as part of a logical volume's name


def _stated(root: Path, patterns: Iterable[str]) -> Iterator[str]:
    for pattern in patterns:
        for file in root.glob(pattern):
            yield from filter(None, (read_text(file), read_text(file).rpartition(".")[2]))


def _gpu_ids(root: Path) -> dict[str, str]:
    """Return what replaces the IDs of AMD GPUs, of which one file has the hexadecimal and another the decimal form."""
    drawn = {read_text(file).lower() for file in root.glob("sys/class/drm/card*/device/unique_id")}
    nodes = [read_text(file) for file in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")]
    drawn |= {f"{int(number):016x}" for node in nodes if (number := match_group(r"^unique_id (\d+)$", node))}
    ids = {int(text, 16) for text in drawn if re.fullmatch(r"[0-9a-f]{1,16}", text)} - {0}
    stand_ins: dict[str, str] = {}
    for place, gpu in enumerate(sorted(ids), 1):
        stand_ins |= {f"{gpu:016x}": f"{place:016x}", f"{gpu:x}": f"{place:016x}", str(gpu): str(place)}
    return stand_ins
