"""Data errors: unreadable samples and lost storage."""

import errno
import os
import stat
from typing import Union

from epochmeter.shared.problem import MachineError, Place, Problem

STORAGE_GONE_ERRORS = (
    errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO,
)  # fmt: skip
"""Error numbers of an unplugged storage device, or of a network file system whose server is gone."""
REMAKE_HINT = "A dataset prepared by epochmeter is prepared again if you delete its folder; your own dataset is not"


class BadSampleError(MachineError):
    """A sample that cannot be read; may be skipped."""

    @property
    def name(self) -> str:
        return self.problems[0].where.file


class StorageGoneError(MachineError):
    """The dataset's storage fails: no sample can be read, and none is skipped because of it."""


def bad_sample_error(
    name: str, error: Union[BaseException, str], folder: str, kind: str = "image"
) -> Union[BadSampleError, StorageGoneError]:
    """Return StorageGoneError if the storage failed, else BadSampleError; `error` is an exception or a text."""
    if _is_special(name):
        error = "it is a pipe, a socket or a device, not a file"
    number = getattr(error, "errno", None)
    if number in STORAGE_GONE_ERRORS or (number is not None and not os.path.isdir(folder)):
        message = "the dataset's storage fails or is not mounted: cannot read {}: {}".format(name, error)
        hint = "check the storage device and its mount at {}, then run the command again".format(folder)
        return StorageGoneError(Problem(message, hint, "storage", Place(file=str(folder))))
    if os.path.islink(name):
        error = "it is a link to {}: {}".format(os.readlink(name), getattr(error, "strerror", None) or error)
    hint = "restore the file, or set dataset.on_bad=skip to skip such files. " + REMAKE_HINT
    return BadSampleError(Problem("cannot read {} {}: {}".format(kind, name, error), hint, where=Place(file=str(name))))


def _is_special(path: str) -> bool:
    """Return whether there is something other than a file or a folder at a path."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # there is none, or it is the name of a sample
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
