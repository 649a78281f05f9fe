"""Errors in a user's input: the problem and a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

LONGEST = 1000
"""Maximum length of a printed line, in characters: a key or a value may be as long as the shell allows."""


class Problem(NamedTuple):
    """One thing that is wrong with an input, and how to fix it."""

    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}\n  hint: {self.hint}"


class InputError(ValueError):
    """An invalid input. Its text follows `error: ` and has a line with a hint for each problem."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\nerror: ".join(map(str, problems)))
        self.problems: Sequence[Problem] = problems


def input_error(what: str, hint: str) -> InputError:
    """Return the error for a single problem."""
    return InputError(Problem(what, hint))


def line(error: BaseException | str) -> str:
    """Return the text for the terminal: `error: ` and the message, with very long lines shortened.

    In a text without a hint, the first sentence is the problem and the others are the hint.
    """
    text = str(error).strip()
    if "hint: " not in text and (parts := re.fullmatch(r"([^\n]+?)(?:\. (?=[A-Z])|: (?=give ))([^\n]+)", text)):
        text = str(Problem(*parts.groups()))
    return "error: " + "\n".join(map(_cut, text.splitlines()))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"
