"""`format=json`: one JSON document on standard output at the end of a command; all texts are on standard error.

A command gives its result to `set_result`. The document also has the exit code, and the problems of a refused command.
"""

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from epochmeter.config.errors import Refused
from epochmeter.config.installation import with_own_commands
from epochmeter.config.printable import printable_tree
from epochmeter.config.secrets import redact_tree
from epochmeter.config.standard_streams import Output, end_without_reader, format_write_problem
from epochmeter.shared.problem import Problem

SCHEMA = 1
"""Version of the document; it changes if a field is removed, renamed or gets another meaning."""
KEY = "format"
REQUEST = f"{KEY}=json"
OTHER_OUTPUT = ("--help", "-h", "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc")
"""Options that replace a command's output."""
_results: list[object] = []  # of this process, which runs one command


def is_requested(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of a command, without those of a script, request a document."""
    plain = [argument.lstrip("+") for argument in arguments]
    formats = [argument for argument in plain if argument.startswith(f"{KEY}=")]
    return formats[-1:] == [REQUEST] and not {*OTHER_OUTPUT} & {*arguments}


def set_result(result: object) -> None:
    """Set the result of this command, a value of JSON; without `format=json` it has no effect."""
    _results[:] = [result]


def run(command: str, main: Callable[[], int | None], *, keeps_stdout: bool = False) -> int:
    """Run a command, print its document and return its exit code.

    Args:
        keeps_stdout: Whether standard output also has the output of a script. The document is then its last line.
    """
    _results.clear()
    sys.stdout.flush()
    stdout = os.dup(1)
    if not keeps_stdout:
        os.dup2(2, 1)  # also for child processes
    code, problems = 1, list[Problem]()
    try:
        code = main() or 0
    except SystemExit as end:
        code, problems = _exit_code(end), _problems(end)
    except KeyboardInterrupt:
        code, problems = 128 + signal.SIGINT, [Problem("the command was interrupted")]
        raise
    except Exception as error:
        problems = [Problem(f"{type(error).__name__}: {error}")]
        raise
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)
        _write(_document(command, code, problems), after_script=keeps_stdout and bool(_results))
    return code


def _exit_code(end: SystemExit) -> int:
    """Return the exit code of an exception, whose text is printed."""
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
        return 1
    return end.code or 0


def _problems(end: SystemExit) -> list[Problem]:
    if isinstance(end, Refused):
        return [*end.problems]
    if isinstance(end.code, str):
        return [Problem(end.code)]
    if end.code and not _results:
        return [Problem(f"the command ended with exit code {end.code}; standard error has the reason")]
    return []


def _document(command: str, code: int, problems: Sequence[Problem]) -> dict[str, Any]:
    fields = [problem.to_fields() for problem in problems]
    for each in fields:
        each["hint"] = with_own_commands(each["hint"])
    result = _results[0] if _results else None
    return {"schema": SCHEMA, "command": command, "exit_code": code, "problems": redact_tree(fields), "result": result}


def _write(document: dict[str, Any], *, after_script: bool) -> None:
    """Write a document to standard output in one line. Numbers that are not finite are null."""
    finite = json.loads(json.dumps(document, default=str), parse_constant=lambda _: None)
    text = json.dumps(printable_tree(finite))
    begin = os.linesep if after_script else ""  # the script's last line may have no end
    raw = Output(1, "wb", closefd=False)
    try:
        with io.BufferedWriter(raw) as buffer:
            buffer.write(f"{begin}{text}{os.linesep}".encode())
    except BrokenPipeError:
        end_without_reader()
    if raw.error:
        sys.exit(format_write_problem(raw.error))
