"""The Python interpreter of a training process or of a script, which needs torch but nothing of this command."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from epochmeter.config.interpreter import active_environment
from epochmeter.config.printable import printable
from epochmeter.config.schema import Job
from epochmeter.config.script import ATTACHED, filled_command, is_program
from epochmeter.run.shebang import Shebang, read_shebang
from epochmeter.shared.problem import InputError, input_error, problem_of

PROBE_LIMIT_S = 60.0
# Exits with 0 in a Python that has torch. A folder named torch without code has no origin, or "namespace" (Python 3.6).
PROBE = """
import sys
from importlib.util import find_spec
print(sys.prefix)
sys.exit(sys.version_info < (3, 6) or getattr(find_spec("torch"), "origin", None) in (None, "namespace"))
"""
NOT_SUITED = "is not Python 3.6 or newer with torch"
INSTALL = "install torch for it (on a Jetson: NVIDIA's), or give one that has torch: `device.python=/path/to/python`"


def find_interpreter(python: str | None) -> str:
    """Return the path of the interpreter that trains, by `device.python`; InputError if there is no such program."""
    if path := shutil.which(python) if python else sys.executable:
        return path
    raise input_error(f"`device.python={python}`: there is no such program", INSTALL)


class Choice(NamedTuple):
    """The Python that trains, or that runs a script.

    Attributes:
        python: Its path; None: that of this command.
        note: Why the script's first line, `#!...`, is not followed, or not in all; empty if it is.
    """

    python: str | None
    note: str = ""


def choose_python(job: Job, overrides: Sequence[str]) -> Choice:
    """Return the Python for a job.

    A script gets the one that an override gives, else that of the active environment, else the one that its first line
    names, else the one that `python train.py` would start. The `python` in a device's file, such as a Jetson's, is for
    scripts without an active environment and without a first line.
    """
    command = job.measure.command
    is_script = command is not None and not is_program(command) and ATTACHED not in os.environ  # not one that runs now
    if not is_script or any(override.lstrip("+").startswith("device.python=") for override in overrides):
        return Choice(job.device.python)
    if environment := active_environment():
        return Choice(os.path.join(environment, "bin", "python"))
    script = filled_command(job)[0]
    shebang = read_shebang(script) if script != "-m" else None
    if shebang is None:
        return Choice(job.device.python or _python_on_path())
    path, problem = _python_of_shebang(shebang)
    if problem:
        note = f"the first line of `{script}` is not followed: {problem}"
        return Choice(job.device.python or _python_on_path(), note)
    unused = f"`{script}` is started without the options of its first line: `{shlex.join(shebang.options)}`"
    return Choice(path, unused if shebang.options else "")


def _python_of_shebang(shebang: Shebang) -> tuple[str | None, str]:
    """Return the Python that a first line names, None for this command's; or why that cannot train."""
    name = shebang.interpreter
    if not shebang.is_python:
        return None, f"`{name}` is not Python"
    path = shutil.which(name)
    if path is None:
        return None, f"there is no program `{name}`"
    try:
        has_torch, prefix, _ = _probe(path)
    except InputError as error:
        return None, problem_of(error).message
    if not has_torch:
        return None, f"{path} {NOT_SUITED}"
    return (None if prefix == _probe(sys.executable)[1] else path), ""


def check_interpreter(interpreter: str) -> None:
    """Refuse an interpreter that is not Python 3.6 or newer with torch, which is not imported; InputError."""
    has_torch, _, error = _probe(interpreter)
    if not has_torch:
        raise input_error(f"{interpreter} {NOT_SUITED}{error and f': {error}'}", INSTALL)


def _python_on_path() -> str | None:
    """Return the first Python on PATH; None if that is this command's, or if only this command's has torch."""
    path = _name_on_path()
    has_torch, prefix = False, ""
    with suppress(InputError):
        has_torch, prefix, _ = _probe(path) if path else (False, "", "")
    own_has_torch, own_prefix, _ = _probe(sys.executable)
    return None if prefix == own_prefix or (own_has_torch and not has_torch) else path


def probe_early(command: Sequence[str]) -> None:
    """Start what `choose_python` asks the Python on PATH, while the configuration of a script is composed.

    A version manager's `python` takes a quarter of a second to start.
    """
    path = None if is_program(command) or ATTACHED in os.environ or active_environment() else _name_on_path()
    for interpreter in (path, sys.executable) if path else ():
        with suppress(InputError):  # which `choose_python` meets again, if it asks
            _started_probe(interpreter)


def _name_on_path() -> str | None:
    return shutil.which("python") or shutil.which("python3")


@cache  # the configurations of a sweep use the same interpreter
def _probe(interpreter: str) -> tuple[bool, str, str]:
    """Return whether an interpreter can train, the folder of its environment, and the last line of its errors.

    InputError if it cannot be run. A program that starts Python in a container has errors of its own.
    """
    probe = _started_probe(interpreter)
    try:
        printed, errors = probe.communicate(timeout=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        probe.kill()
        probe.communicate()
        _started_probe.cache_clear()  # a process that was killed is no answer to the next question
        raise input_error(f"{interpreter} did not answer within {PROBE_LIMIT_S:g} s", INSTALL) from error
    *_, reason = errors.decode(errors="replace").strip().splitlines() or [""]
    return probe.returncode == 0, os.path.realpath(os.fsdecode(printed.strip())), printable(reason)


@cache
def _started_probe(interpreter: str) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen([interpreter, "-c", PROBE], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise input_error(f"{interpreter} cannot be run: {error.strerror}", INSTALL) from error
