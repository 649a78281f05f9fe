"""The first line of a script, `#!...`: the interpreter that starts the script as a program, and its options."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

MAX_BYTES = 256  # of the line that Linux reads
SPLIT = re.compile(r"-v?S(.*)|--split-string=?(.*)", re.DOTALL)
PYTHON = re.compile(r"(?:python|pypy)[\w.-]*")


class Shebang(NamedTuple):
    """The interpreter that a first line names.

    Attributes:
        interpreter: Its path, or its name if `env` finds it on PATH.
        options: Its options, and those of `env`.
    """

    interpreter: str
    options: list[str]

    @property
    def is_python(self) -> bool:
        """Whether the interpreter is named as one of Python."""
        return PYTHON.fullmatch(PurePath(self.interpreter).name.partition(" ")[0]) is not None


def read_shebang(script: str) -> Shebang | None:
    """Return the interpreter that the first line of a file names; None without a first line or a file."""
    try:
        with open(script, "rb") as file:
            line = file.read(MAX_BYTES).splitlines()[:1]
    except OSError:
        return None
    if not line or not line[0].startswith(b"#!"):
        return None
    text = line[0][2:].decode(errors="surrogateescape").strip()  # also of `\r`, at which Linux would fail
    program, _, argument = re.sub(r"\s+", " ", text, count=1).partition(" ")
    if PurePath(program).name != "env":
        return Shebang(program, argument.split()) if program else None
    words = [*_words_of_env(argument)]
    names = [word for word in words if not (word.startswith("-") or "=" in word)]
    if not names:
        return None
    place = words.index(names[0])
    return Shebang(names[0], words[:place] + words[place + 1 :])


def _words_of_env(argument: str) -> Iterator[str]:
    """Yield the words that `env` gets: all in one, as Linux splits nothing, unless `-S` splits them."""
    if split := SPLIT.match(argument):
        with suppress(ValueError):  # quotes without an end
            yield from shlex.split(split[1] or split[2] or "")
    elif argument:
        yield argument
