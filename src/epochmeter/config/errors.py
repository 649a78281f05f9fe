"""Errors about invalid input, each with a problem and a hint."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from epochmeter.config.installation import with_own_commands

if TYPE_CHECKING:
    from yaml import MarkedYAMLError


class Problem(NamedTuple):
    """A problem with an input, with the value in backticks, and a hint with a command or a value to paste."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}"


class InputError(ValueError):
    """An invalid input; its text is printed after `error: `, and has a line with a hint for each problem."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\nerror: ".join(map(str, problems)))
        self.problems: Sequence[Problem] = problems


def input_error(what: str, hint: str) -> InputError:
    return InputError(Problem(what, hint))


def yaml_problem(error: "MarkedYAMLError") -> Problem:
    """Return the problem of a file that is not valid YAML, with the position of the error."""
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a YAML file"
    hint = "fix the YAML; indent with spaces, not tabs"
    return Problem(f"cannot read {where}: {error.problem or error.context}", hint)


def indent_hints(text: str) -> str:
    """Return a message as printed: with hints indented by two spaces, and commands that exist in this installation."""
    return re.sub(r"^ *(?=hint: )", "  ", with_own_commands(text), flags=re.MULTILINE)


def with_hint(text: str) -> str:
    """Turn the sentences after the first into a hint, if a message has one line and no hint."""
    parts = re.fullmatch(r"([^\n]+?)(?:\. (?=[A-Z])|: (?=give ))([^\n]+)", text)
    if parts is None or "hint: " in text:
        return text
    hint = re.sub(r"^[A-Z](?=[a-z]* )", lambda first: first[0].lower(), parts[2])  # not of an abbreviation
    return str(Problem(parts[1], hint))


def format_error(error: BaseException | str) -> str:
    """Return an error as printed."""
    return f"error: {indent_hints(with_hint(str(error).strip()))}"
