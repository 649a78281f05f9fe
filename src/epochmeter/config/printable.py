"""Texts of records, locks and journals, which may be from another user, without characters that command a terminal."""

import re
from typing import Any

CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tabs and line feeds, separators, overrides of the direction, and halves of UTF-16 pairs."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Return a text that can be printed and encoded: each control character is replaced by U+FFFD."""
    return CONTROL.sub(REPLACEMENT, text)


def printable_tree(value: Any) -> Any:
    """Return nested plain values with `printable` texts and keys."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): printable_tree(nested) for key, nested in value.items()}
    return [printable_tree(nested) for nested in value] if isinstance(value, list) else value
