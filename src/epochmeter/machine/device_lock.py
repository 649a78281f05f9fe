"""The lock of a device: a second measurement on it waits, and is told for whom."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

SHARED = Path("/run/lock")


@contextmanager
def held(devices: Sequence[str], folder: str | None, holder: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds every device while within; waits for those that another process holds, after saying who does.

    The kernel lets go when the process ends, however it ends. `folder` is where the locks lie: by default one
    that all users of this machine share.
    """
    place = Path(folder) if folder else _shared()
    with ExitStack() as locks:
        for device in sorted(devices):
            locks.enter_context(_held(place / f"epochmeter-{device}.lock", device, holder, say))
        yield


@contextmanager
def _held(path: Path, device: str, holder: str, say: Callable[[str], None]) -> Iterator[None]:
    try:
        descriptor = _open(path)
    except OSError as error:
        raise RuntimeError(
            f"the lock of {device} cannot be opened: {error}. Name a folder that can be written: machine.lock_dir="
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for {device}, in use by {os.pread(descriptor, 1000, 0).decode(errors='replace')}.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode()[:1000], 0)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """The lock file, shared by all users: created only if it is missing, since a kernel that protects sticky
    folders refuses to create what another user has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o666)
        return descriptor


def _shared() -> Path:
    """/run/lock where its mode lets everyone write there, or else /tmp: whoever asks, in whatever job, is told one."""
    return SHARED if SHARED.is_dir() and SHARED.stat().st_mode & stat.S_IWOTH else Path("/tmp")
