"""The folder of a script's event logs: it outlives a controller that is killed, and is found again by its run's ID."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from epochmeter.shared.events import FOLDER_PREFIX
from epochmeter.shared.record import Record

SHARED_MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 16 << 20  # in the shared memory, for the logs of a script's events
STARTED = "started.json"  # file with the identity of the process that the controller has started


@contextmanager
def event_folder(record: Record, record_id: str) -> Iterator[Path]:
    """Make the folder of a run's event logs, and delete it at the end.

    It is in shared memory, where a write never waits for a disk, or else in the run folder.
    """
    is_shared = False
    with suppress(OSError):
        space = os.statvfs(SHARED_MEMORY)
        is_shared = os.access(SHARED_MEMORY, os.W_OK) and space.f_bavail * space.f_frsize >= MIN_FREE_BYTES
    folder = _folder_in(SHARED_MEMORY if is_shared else record.folder, record_id)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def left_event_folder(record: Record, record_id: str) -> Path | None:
    """Return the folder of the event logs that a killed controller has left; None if there is none of this user."""
    for parent in (SHARED_MEMORY, record.folder):
        folder = _folder_in(parent, record_id)
        with suppress(OSError):
            if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
                return folder
    return None


def _folder_in(parent: Path, record_id: str) -> Path:
    return parent / (FOLDER_PREFIX + os.path.basename(record_id))  # of a foreign record: maybe a path
