"""Read the files of a run folder, which may be from another user: nothing outside it is read, no reader waits for ever.

Links are not followed. Pipes, devices and files that are too large are refused, as is JSON that is nested too deeply.
"""

import errno
import json
import os
import stat
from typing import Any, BinaryIO, Optional, Union

from epochmeter.shared.types import StrPath

MAX_BYTES = 2**32  # size of a file above which it is neither read nor published
MAX_JSON_BYTES = 2**26  # the same for JSON, which is parsed as a whole
MAX_DEPTH = 200  # levels of nested lists and objects in JSON


def open_file(path: StrPath, max_bytes: Optional[int] = MAX_BYTES) -> BinaryIO:
    """Open a file to read its bytes; OSError unless it is a regular file of at most this size (None: any)."""
    return open(_descriptor(path, max_bytes), "rb")


def _descriptor(path: StrPath, max_bytes: Optional[int]) -> int:
    try:
        descriptor = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, refusal(path, max_bytes) or error.strerror, str(path)) from None
    try:
        reason = _refusal(os.fstat(descriptor), max_bytes)
        if reason:
            raise OSError(errno.EINVAL, reason, str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def refusal(path: StrPath, max_bytes: Optional[int] = MAX_BYTES) -> str:
    """Return why `open_file` refuses a file, without opening it; empty if it does not, or if there is no such file."""
    try:
        return _refusal(os.lstat(str(path)), max_bytes)
    except (OSError, ValueError):
        return ""


def _refusal(status: os.stat_result, max_bytes: Optional[int]) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "it is a link, and links are not followed"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if max_bytes is not None and status.st_size > max_bytes:
        return "it is larger than {:,} bytes".format(max_bytes)
    return ""


def read_bytes(path: StrPath, max_bytes: Optional[int] = MAX_BYTES) -> bytes:
    """Return the content of a file; OSError as of `open_file`."""
    with open(_descriptor(path, max_bytes), "rb", buffering=0) as file:
        return file.read()


def read_document(path: StrPath) -> Any:
    """Return the value of a JSON file; OSError as of `open_file`, and ValueError if it is damaged."""
    return parse_json(read_bytes(path, MAX_JSON_BYTES))


def parse_json(text: Union[str, bytes]) -> Any:
    """Return the value of a JSON text, a str or bytes; ValueError if it is damaged or nested too deeply."""
    try:
        value = json.loads(text)
        if has_too_many_levels(text, value):
            raise RecursionError
    except RecursionError:
        raise ValueError("its values are nested more than {} levels deep".format(MAX_DEPTH)) from None
    return value


def has_too_many_levels(text: Union[str, bytes], value: object) -> bool:
    """Return whether the value of a JSON text has more than `MAX_DEPTH` levels of lists and objects."""
    brackets = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if brackets <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [node for node in level if isinstance(node, (dict, list))]
        level = [child for node in containers for child in (node.values() if isinstance(node, dict) else node)]
    return any(isinstance(node, (dict, list)) for node in level)
