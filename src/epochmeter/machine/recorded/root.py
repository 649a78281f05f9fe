"""The value of `machine.root`: a folder, or the archive of a recorded machine, which is replayed from its first use on.

The replay is imported only if there is one.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from epochmeter.machine.disk import Disk, describe, disk_of, recorded_disk_of
from epochmeter.shared.types import Document

NO_READS = "`machine.root=` is a recording, whose disk is not read"

if TYPE_CHECKING:
    from epochmeter.machine.recorded.replay import Recording

_has_replayed = False


def root_folder(root: str | Path) -> Path:
    """Return the folder of a machine's files: a root itself, or that of the recording which it names.

    InputError if it is an archive that cannot be replayed.
    """
    recording = find_recording(root)
    return recording.folder if recording else Path(root)


def find_recording(root: str | Path) -> "Recording | None":
    """Return the recording that a root names; None if it is a folder. It is replayed from the first call on."""
    if not os.path.isfile(root):
        return None
    from epochmeter.machine.recorded.replay import replay

    return replay(str(root)).recording


def use_machine(root: str | Path) -> Path:
    """Return the folder of a machine's files, and use its drivers from now on: a recording's, or this machine's."""
    global _has_replayed
    is_recording = os.path.isfile(root)
    if is_recording or _has_replayed:
        from epochmeter.machine.recorded.replay import use_drivers

        use_drivers(str(root) if is_recording else None)
        _has_replayed = True
    return root_folder(root)


def storage_of(folder: Path, root: str | Path) -> tuple[Disk, Document]:
    """Return the storage of a folder on the machine of a root, and its description for the record.

    On a recorded machine, no device counts the reads: the files are read on this machine.
    """
    recording = find_recording(root)
    if recording is None:
        disk = disk_of(folder)
        return disk, describe(disk)
    disk = recorded_disk_of(folder, recording.folder)
    return disk._replace(devices=(), reason=disk.reason or NO_READS), describe(disk, recording.folder)
