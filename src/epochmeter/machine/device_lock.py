"""Locks of devices, so that a second measurement on the same device waits."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from epochmeter.config.printable import printable
from epochmeter.shared.problem import machine_error

SHARED_LOCK_DIR = Path("/run/lock")
MAX_HOLDER_BYTES = 1000


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
                    say(f"Waiting for {device}, in use by {_holder(descriptor)}.")
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, holder.encode(errors="replace")[:MAX_HOLDER_BYTES], 0)
            except BrokenPipeError:  # of `say`: the terminal is gone
                raise
            except OSError as error:
                hint = "name a folder on a local disk that you may write to: machine.lock_dir="
                raise machine_error(f"cannot lock {device}: {error}", hint) from error
        yield


def _open(path: Path) -> int:
    """Open the lock file, which all users share. Links, also hard ones, are refused: they may be any file of a user."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:  # with fs.protected_regular, sticky folders refuse O_CREAT for another user's file
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a file with one name", str(path))
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != 0o666:
        os.fchmod(descriptor, 0o666)
    return descriptor


def _holder(descriptor: int) -> str:
    """Return the text about the holder in a lock file, which any user may have written, in one printable line."""
    text = os.pread(descriptor, MAX_HOLDER_BYTES, 0).decode(errors="replace")
    return printable(" ".join(text.split()))


def _default_lock_dir() -> Path:
    """The folder that all users and jobs agree on: /run/lock if everyone may write there, else /tmp."""
    is_shared = SHARED_LOCK_DIR.is_dir() and SHARED_LOCK_DIR.stat().st_mode & stat.S_IWOTH
    return SHARED_LOCK_DIR if is_shared else Path("/tmp")
