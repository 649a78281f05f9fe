"""What goes wrong with data: a sample that is bad, a storage that is gone, a loader that has no memory left."""

import errno
import os

GONE = (errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO)
"""What reading from a medium says that was unplugged, or a network file system whose server is away."""
SHARED_MEMORY = ("shared memory", "Bus error", "No space left on device", "unable to mmap", "unable to write to file")
"""What torch's loader says where its processes have no room to pass batches on."""


class BadSampleError(RuntimeError):
    """A sample that cannot be read; it may be skipped. An exception of a loader process comes back by its text alone,
    so that the `name` is known only there."""

    def __init__(self, text, name=""):
        super().__init__(text)
        self.name = name


class StorageGoneError(RuntimeError):
    """The medium under the dataset fails; no sample can be read, and none is skipped for it."""

    failure = "storage"


def unreadable(path, error, folder):
    """The exception for an image that could not be read from `path`, in the dataset's `folder`."""
    number = getattr(error, "errno", None)
    if number in GONE or (isinstance(error, OSError) and number is not None and not os.path.isdir(folder)):
        return StorageGoneError(
            "the storage of the dataset is gone, or fails: {} cannot be read: {}. Check the medium and its mount at "
            "{}, and run it again.".format(path, error, folder)
        )
    return BadSampleError(
        "image {} cannot be read: {}. Put the whole file back, leave such files out by dataset.on_bad=skip, or remove "
        "the dataset's folder to have it made again.".format(path, error),
        path,
    )


def is_shared_memory(text):
    """Whether an error of torch's loader says that its processes have run out of shared memory."""
    return any(words in text for words in SHARED_MEMORY)


def shared_memory(text):
    """What to say of it."""
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
