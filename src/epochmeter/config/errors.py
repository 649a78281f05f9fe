"""Errors as the commands print them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from epochmeter.config.installation import with_own_commands
from epochmeter.config.printable import printable
from epochmeter.config.secrets import redact, redact_tree
from epochmeter.shared.atomic_files import write_json
from epochmeter.shared.problem import Place, Problem, format_problem, problem_of, problems_of

if TYPE_CHECKING:
    from yaml import MarkedYAMLError

REFUSAL_FILE = "EPOCHMETER_REFUSAL"
"""Environment variable with the file for the problem of a run that is refused: set by the command that submits it."""


def yaml_problem(error: "MarkedYAMLError") -> Problem:
    """Return the problem of a file that is not valid YAML, with the position of the error."""
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else "a YAML file"
    hint = "fix the YAML; indent with spaces, not tabs"
    return Problem(f"cannot read {where}: {error.problem or error.context}", hint, where=Place(file=mark.name or ""))


def format_error(error: BaseException | Problem, severity: str = "error") -> str:
    """Return an error as printed: without credentials, and with commands that exist in this installation."""
    problems = (error,) if isinstance(error, Problem) else problems_of(error)
    text = "\n".join(format_problem(problem, severity) for problem in problems)
    return printable(with_own_commands(redact(text)))


class Refused(SystemExit):
    """The end of a command that cannot do what it was asked for: its code is the text to print."""

    def __init__(self, error: BaseException | Problem) -> None:
        super().__init__(format_error(error))
        self.problems = (error,) if isinstance(error, Problem) else problems_of(error)


def refuse(error: BaseException | Problem) -> NoReturn:
    """End the command with an error, before its run begins."""
    record_refusal(error)
    raise Refused(error)


def record_refusal(error: BaseException | Problem) -> None:
    """Write the problem of a run that is refused for the command that has submitted it, if one has."""
    if path := os.environ.get(REFUSAL_FILE):
        with suppress(OSError):  # its message is printed as well
            problem = error if isinstance(error, Problem) else problem_of(error)
            write_json(Path(path), redact_tree(problem.to_fields()))
