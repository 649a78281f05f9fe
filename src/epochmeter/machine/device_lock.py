"""Locks of devices, so that a second measurement on the same device waits."""

import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

SHARED_LOCK_DIR = Path("/run/lock")


@contextmanager
def lock_devices(devices: Sequence[str], folder: str | None, holder: str, say: Callable[[str], None]) -> Iterator[None]:
    """Lock devices, waiting while another process holds one; the kernel releases the locks of a process that ends.

    `holder` describes this process to processes that wait. Without `folder`, all users share the lock files.
    """
    lock_dir = Path(folder).expanduser() if folder else _default_lock_dir()
    with ExitStack() as locks:
        for device in sorted(devices):
            try:
                descriptor = _open(lock_dir / f"epochmeter-{device}.lock")
                locks.callback(os.close, descriptor)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say(f"Waiting for {device}, in use by {os.pread(descriptor, 1000, 0).decode(errors='replace')}.")
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, holder.encode()[:1000], 0)
            except BrokenPipeError:  # of `say`: the terminal is gone
                raise
            except OSError as error:
                hint = "name a folder on a local disk that you may write to: machine.lock_dir="
                raise RuntimeError(f"cannot lock {device}: {error}\nhint: {hint}") from error
        yield


def _open(path: Path) -> int:
    """Open the lock file, which all users share; links are refused, as a link may point to any file of this user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:  # with fs.protected_regular, sticky folders refuse O_CREAT for another user's file
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o666)
        return descriptor


def _default_lock_dir() -> Path:
    """The folder that all users and jobs agree on: /run/lock if everyone may write there, else /tmp."""
    is_shared = SHARED_LOCK_DIR.is_dir() and SHARED_LOCK_DIR.stat().st_mode & stat.S_IWOTH
    return SHARED_LOCK_DIR if is_shared else Path("/tmp")
