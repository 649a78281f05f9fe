"""What goes wrong with data: a sample that is bad, a storage that is gone, a loader that has no memory left."""

import errno
import os
import re
import signal
import time
from multiprocessing.connection import wait

GONE = (errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO)
"""What reading from a medium says that was unplugged, or a network file system whose server is away."""
SHARED_MEMORY = re.compile(r"unable to [^<]*</torch_|shared memory object|out of shared memory|signal: Bus error")
"""What torch's loader says where its processes have no room to pass batches on."""
NO_ROOM, LITTLE_BYTES = "No space left on device", 1 << 20
"""What a queue says that finds none in shared memory; so does any full disk, so that it is looked at as well."""
KILLED = "signal: Killed"
ENDS_S = 5.0
"""How long a loader process may take to end whose connection is gone already."""
REMADE = "A dataset that epochmeter made is made again once its folder is removed; one of your own is not."


class BadSampleError(RuntimeError):
    """A sample that cannot be read; it may be skipped. An exception of a loader process comes back by its text alone,
    so that the `name` is known only there."""

    def __init__(self, text, name=""):
        super().__init__(text)
        self.name = name


class StorageGoneError(RuntimeError):
    """The medium under the dataset fails; no sample can be read, and none is skipped for it."""

    failure = "storage"


class NoMemoryError(RuntimeError):
    """The samples do not fit into the memory that is to hold them."""

    failure = "oom"


def unreadable(name, error, folder, kind="image"):
    """The exception for a sample, by its path where it has one, that could not be read from the dataset's `folder`."""
    number = getattr(error, "errno", None)
    if number in GONE or (isinstance(error, OSError) and number is not None and not os.path.isdir(folder)):
        return StorageGoneError(
            "the storage of the dataset is gone, or fails: {} cannot be read: {}. Check the medium and its mount at "
            "{}, and run it again.".format(name, error, folder)
        )
    return BadSampleError(
        "{} {} cannot be read: {}. Put the whole file back, or leave such files out by dataset.on_bad=skip. {}".format(
            kind, name, error, REMADE
        ),
        name,
    )


def died(processes):
    """torch's own exception for the first of these loader processes that a signal ended; None if none was.

    torch raises it by itself, but where a process dies while it hands a batch over, whose connection is then all that
    fails.
    """
    end, left = time.monotonic() + ENDS_S, list(processes)
    while left and wait([process.sentinel for process in left], max(0, end - time.monotonic())):
        codes = [(process, process.exitcode) for process in left]  # asked once: it may end between two questions
        for process, code in codes:
            if code is not None and code < 0:
                number = -code
                name = {signal.SIGKILL: "Killed", signal.SIGBUS: "Bus error"}.get(number, number)
                return RuntimeError("DataLoader worker (pid {}) is killed by signal: {}.".format(process.pid, name))
        left = [process for process, code in codes if code is None]  # one that ended well tells nothing of others
    return None


def whole_text(error):
    """What an error says, and what brought it about: of a loader process that died, only the cause says how."""
    said = []
    while error is not None:
        said.append(str(error).strip())
        error = error.__cause__
    return "\n".join(said)


def is_shared_memory(text):
    """Whether an error of torch's loader says that its processes have run out of shared memory."""
    if "Too many open files" in text:  # these have the same names, and no more room helps
        return False
    if SHARED_MEMORY.search(text):
        return True
    return text.rstrip().endswith(NO_ROOM) and _free_bytes() < LITTLE_BYTES


def is_killed(text):
    """Whether an error of torch's loader says that one of its processes was killed."""
    return KILLED in text


def kernel_counts_kills():
    """Whether the kernel counts the processes that it kills for want of memory, as it does from 4.13 on.

    Where it does, the steward knows whether it did; else a loader process that was killed is taken for one of them.
    """
    try:
        with open("/proc/vmstat") as file:
            return any(line.startswith("oom_kill ") for line in file)
    except OSError:
        return False


def shared_memory(text):
    """What to say of shared memory that ran out."""
    try:
        room = os.statvfs("/dev/shm")
        size = "/dev/shm has {:.0f} MB, of which {:.0f} are free now".format(
            room.f_blocks * room.f_frsize / 1e6, room.f_bavail * room.f_frsize / 1e6
        )
    except OSError as error:
        size = "/dev/shm cannot be asked: {}".format(error.strerror)
    return (
        "loader processes ran out of shared memory, by which batches reach the one that trains ({}); {}. Take fewer "
        "workers, a smaller batch or prefetch, or workers=0; in a container, give it more (docker run "
        "--shm-size=8g).".format(text, size)
    )


def killed(text):
    """What to say of a loader process that was killed."""
    return (
        "a loader process was killed, as the kernel does where memory runs out ({}). Take fewer workers, a smaller "
        "batch or prefetch, or workers=0.".format(text)
    )


def exhausted(wanted=""):
    """What to say of a loader process that ran out of memory, with how much it wanted."""
    return (
        "a loader process ran out of memory{}. Take fewer workers, a smaller batch or prefetch, or workers=0.".format(
            wanted and " ({})".format(wanted)
        )
    )


def _free_bytes():
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize
