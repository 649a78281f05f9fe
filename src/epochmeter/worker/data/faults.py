"""Data errors: unreadable samples and lost storage."""

import errno
import os

STORAGE_GONE_ERRORS = (
    errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO,
)  # fmt: skip
"""Error numbers of an unplugged storage device, or of a network file system whose server is gone."""
REMAKE_HINT = "A dataset prepared by epochmeter is prepared again if you delete its folder; your own dataset is not."


class BadSampleError(RuntimeError):
    """A sample that cannot be read; may be skipped. Only the text reaches the training process, not the name."""

    def __init__(self, text, name=""):
        super().__init__(text)
        self.name = name


class StorageGoneError(RuntimeError):
    """The dataset's storage fails: no sample can be read, and none is skipped because of it."""

    failure = "storage"


def bad_sample_error(name, error, folder, kind="image"):
    """Return StorageGoneError if the storage failed, else BadSampleError; `error` is an exception or a text."""
    number = getattr(error, "errno", None)
    if number in STORAGE_GONE_ERRORS or (number is not None and not os.path.isdir(folder)):
        remedy = "Check the storage device and its mount at {}, then run the command again.".format(folder)
        message = "the dataset's storage fails or is not mounted: cannot read {}: {}. {}"
        return StorageGoneError(message.format(name, error, remedy))
    message = "cannot read {} {}: {}. Restore the file, or set dataset.on_bad=skip to skip such files. {}"
    return BadSampleError(message.format(kind, name, error, REMAKE_HINT), name)
