"""Small text files that tell of the machine. What cannot be read, or says nothing, is empty."""

import re
from pathlib import Path
from typing import Any


def text(path: Path) -> str:
    """The file's text, its NULs as spaces; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def texts(root: Path, pattern: str) -> list[str]:
    """What the files below `root` that fit the pattern say, those that say nothing left out."""
    return [said for path in sorted(root.glob(pattern)) if (said := text(path))]


def found(pattern: str, said: str) -> str:
    """What the pattern's first group finds on any line; empty where it finds nothing."""
    match = re.search(pattern, said, re.MULTILINE)
    return match[1].strip() if match else ""


def present(values: dict[str, Any]) -> dict[str, Any]:
    """What was found: empty text, 0 cores and no GPUs are what was not."""
    return {key: value for key, value in values.items() if value}
