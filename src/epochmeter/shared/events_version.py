"""The version of events, facts and messages: an agent and a controller from two installations must have the same."""

import os
import zlib

FOLDER = os.path.dirname(os.path.abspath(__file__))
FILES = (
    *("events.py", "protocol.py", "../agent/facts.py", "../agent/event_log.py", "../agent/batch_timer.py"),
    "../agent/operators.py",
)


def events_version() -> str:
    """Return a checksum of the files that define them."""
    checksum = 0
    for name in FILES:
        with open(os.path.join(FOLDER, *name.split("/")), "rb") as file:
            checksum = zlib.crc32(file.read(), checksum)
    return "{:08x}".format(checksum)
