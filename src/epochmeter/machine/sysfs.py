"""Readers of small kernel and system files; unreadable files count as empty."""

import re
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def read_text(path: Path) -> str:
    """The stripped text of a file, with NULs as spaces; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def match_group(pattern: str, content: str) -> str:
    """The first group of the first match of a regular expression in a text; empty if there is none."""
    match = re.search(pattern, content, re.MULTILINE)
    return match[1].strip() if match else ""


def drop_empty(values: dict[str, T]) -> dict[str, T]:
    """Drop empty values: empty text, 0 cores, no GPUs."""
    return {key: value for key, value in values.items() if value}
