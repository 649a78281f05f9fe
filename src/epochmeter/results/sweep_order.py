"""Order of the folders in `multirun/` by their last start, which no wrong clock changes.

A new folder is named after its start, but never before an existing one. A folder that a command resumes after a newer
one was created has a file `.started` with such a name.
"""

import re
from contextlib import suppress
from pathlib import Path

from epochmeter.config.rules import MAX_NAME_BYTES
from epochmeter.shared.record_files import read_bytes

STARTED_FILE = ".started"
NAME_PATTERN = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:\.(\d+))?-")
"""Start of folder names: the time, and a counter within the second."""
StartKey = tuple[str, int]


def start_key(folder: Path) -> StartKey:
    """Return a sort key for folders by their last start."""
    resumed = ""
    with suppress(OSError, ValueError):
        resumed = read_bytes(folder / STARTED_FILE, MAX_NAME_BYTES).decode()
    return max(sort_key(folder.name), sort_key(resumed))


def sort_key(name: str) -> StartKey:
    """Return a sort key for folder names by creation; a renamed folder sorts first."""
    match = NAME_PATTERN.match(name)
    return (match[1], int(match[2] or 1)) if match else ("", 0)


def write_start(folder: Path, key: StartKey) -> None:
    """Record that a folder was started again."""
    (folder / STARTED_FILE).write_text("{}.{}-".format(*key))
