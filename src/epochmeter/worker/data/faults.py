"""Data errors: unreadable samples, lost storage, and DataLoader workers that die or run out of memory."""

import errno
import os
import re
import signal
import time
from multiprocessing.connection import wait

STORAGE_GONE_ERRORS = (
    errno.EIO,
    errno.ENODEV,
    errno.ENXIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ESHUTDOWN,
    errno.EREMOTEIO,
)
"""Error numbers of an unplugged storage device, or of a network file system whose server is gone."""
SHARED_MEMORY = re.compile(r"unable to [^<]*</torch_|shared memory object|out of shared memory|signal: Bus error")
"""torch's messages when DataLoader workers have no shared memory left for batches."""
NO_SPACE = "No space left on device"
"""A queue's message without shared memory. Any full disk has the same, so the free shared memory is checked too."""
MIN_FREE_BYTES = 1 << 20
"""Shared memory counts as exhausted if less than this is free."""
KILLED = "signal: Killed"
"""torch's message about a DataLoader worker ended by SIGKILL."""
EXIT_WAIT_S = 5.0
"""How long to wait for the exit status of a DataLoader worker whose connection broke, in seconds."""
LOADER_HINT = "Use fewer workers, a smaller batch or prefetch, or workers=0"
REMAKE_HINT = "A dataset prepared by epochmeter is prepared again if you delete its folder; your own dataset is not."


class BadSampleError(RuntimeError):
    """A sample that cannot be read; may be skipped.

    Only the text of a DataLoader worker's exception reaches the training process, so `name` is known only in the
    worker.
    """

    def __init__(self, text, name=""):
        super().__init__(text)
        self.name = name


class StorageGoneError(RuntimeError):
    """The dataset's storage fails: no sample can be read, and none is skipped because of it."""

    failure = "storage"


class NoMemoryError(RuntimeError):
    """The samples do not fit in memory."""

    failure = "oom"


def bad_sample_error(name, error, folder, kind="image"):
    """Return the exception for a sample that could not be read.

    Args:
        name: The sample's path or index.
        error: The cause, an exception or a text.
        kind: Name of the sample's kind in the message.

    Returns:
        StorageGoneError if the storage failed, else BadSampleError.
    """
    number = getattr(error, "errno", None)
    if number in STORAGE_GONE_ERRORS or (
        isinstance(error, OSError) and number is not None and not os.path.isdir(folder)
    ):
        return StorageGoneError(
            "the dataset's storage fails or is not mounted: cannot read {}: {}. Check the storage device and its mount "
            "at {}, then run the command again.".format(name, error, folder)
        )
    return BadSampleError(
        "cannot read {} {}: {}. Restore the file, or set dataset.on_bad=skip to skip such files. {}".format(
            kind, name, error, REMAKE_HINT
        ),
        name,
    )


def dead_loader_error(processes):
    """Return torch's exception for the first DataLoader worker ended by a signal; None if there is none.

    torch itself raises it, except if a worker dies while it sends a batch: then only the connection fails.
    """
    end, running = time.monotonic() + EXIT_WAIT_S, list(processes)
    while running and wait([process.sentinel for process in running], max(0, end - time.monotonic())):
        codes = [(process, process.exitcode) for process in running]  # read once: the process may end in between
        for process, code in codes:
            if code is not None and code < 0:
                number = -code
                name = {signal.SIGKILL: "Killed", signal.SIGBUS: "Bus error"}.get(number, number)
                return RuntimeError("DataLoader worker (pid {}) is killed by signal: {}.".format(process.pid, name))
        running = [process for process, code in codes if code is None]  # some ended normally: wait for the rest
    return None


def error_chain_text(error):
    """Return the texts of an error and its causes; only the cause says how a DataLoader worker died."""
    texts = []
    while error is not None:
        texts.append(str(error).strip())
        error = error.__cause__
    return "\n".join(texts)


def is_shared_memory(text):
    """Whether an error of torch's DataLoader reports exhausted shared memory."""
    if "Too many open files" in text:  # the same file names, but another cause
        return False
    if SHARED_MEMORY.search(text):
        return True
    if not text.rstrip().endswith(NO_SPACE):
        return False
    try:
        disk = os.statvfs("/dev/shm")
    except OSError:
        return True
    return disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES


def is_killed(text):
    """Whether an error of torch's DataLoader reports a killed worker."""
    return KILLED in text


def kernel_counts_kills():
    """Whether the kernel counts its out-of-memory kills (Linux 4.13 and newer).

    If it does, the controller finds out; otherwise a killed DataLoader worker is assumed to be one of them.
    """
    try:
        with open("/proc/vmstat") as file:
            return any(line.startswith("oom_kill ") for line in file)
    except OSError:
        return False


def shared_memory_message(text):
    """Return the message for exhausted shared memory."""
    return (
        "DataLoader workers ran out of shared memory, /dev/shm, which carries batches to the training process ({}). "
        "{}; in a container, increase it (docker run --shm-size=8g).".format(text, LOADER_HINT)
    )


def killed_message(text):
    """Return the message for a killed DataLoader worker."""
    return "a DataLoader worker was killed, probably by the kernel because memory ran out ({}). {}.".format(
        text, LOADER_HINT
    )


def out_of_memory_message(requested=""):
    """Return the message for a DataLoader worker that ran out of memory, with the size of the request."""
    size = " ({})".format(requested) if requested else ""
    return "a DataLoader worker ran out of memory{}. {}.".format(size, LOADER_HINT)
