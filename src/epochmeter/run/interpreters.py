"""The Python interpreter of a training process or of a script, which needs torch but nothing of this command."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from epochmeter.config.interpreter import active_environment
from epochmeter.config.schema import Job
from epochmeter.config.script import ATTACHED, is_program
from epochmeter.shared.problem import InputError, input_error

PROBE_LIMIT_S = 60.0
# Exits with 0 in a Python that has torch. A folder named torch without code has no origin, or "namespace" (Python 3.6).
PROBE = """
import sys
from importlib.util import find_spec
print(sys.prefix)
sys.exit(sys.version_info < (3, 6) or getattr(find_spec("torch"), "origin", None) in (None, "namespace"))
"""
INSTALL = "install torch for it (on a Jetson: NVIDIA's), or give one that has torch: `device.python=/path/to/python`"


def find_interpreter(python: str | None) -> str:
    """Return the path of the interpreter that trains, by `device.python`; InputError if there is no such program."""
    if path := shutil.which(python) if python else sys.executable:
        return path
    raise input_error(f"`device.python={python}`: there is no such program", INSTALL)


def python_of(job: Job, overrides: Sequence[str]) -> str | None:
    """Return `device.python` for a job; None is the Python of this command.

    A script gets the Python that `python train.py` would start, unless an override gives one. The `python` in a
    device's file, such as a Jetson's, is for scripts without an active environment.
    """
    command = job.measure.command
    is_script = command is not None and not is_program(command) and ATTACHED not in os.environ  # not one that runs now
    if not is_script or any(override.lstrip("+").startswith("device.python=") for override in overrides):
        return job.device.python
    if environment := active_environment():
        return os.path.join(environment, "bin", "python")
    return job.device.python or _python_on_path()


def check_interpreter(interpreter: str) -> None:
    """Refuse an interpreter that is not Python 3.6 or newer with torch, which is not imported; InputError."""
    has_torch, _ = _probe(interpreter)
    if not has_torch:
        raise input_error(f"{interpreter} is not Python 3.6 or newer with torch", INSTALL)


def _python_on_path() -> str | None:
    """Return the first Python on PATH; None if that is this command's, or if only this command's has torch."""
    path = shutil.which("python") or shutil.which("python3")
    has_torch, prefix = False, ""
    with suppress(InputError):
        has_torch, prefix = _probe(path) if path else (False, "")
    own_has_torch, own_prefix = _probe(sys.executable)
    return None if prefix == own_prefix or (own_has_torch and not has_torch) else path


@cache  # the configurations of a sweep use the same interpreter
def _probe(interpreter: str) -> tuple[bool, str]:
    """Return whether an interpreter can train, and the folder of its environment; InputError if it cannot be run."""
    try:
        probe = subprocess.run(
            [interpreter, "-c", PROBE], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise input_error(f"{interpreter} did not answer within {PROBE_LIMIT_S:g} s", INSTALL) from error
    except OSError as error:
        raise input_error(f"{interpreter} cannot be run: {error.strerror}", INSTALL) from error
    return probe.returncode == 0, os.path.realpath(os.fsdecode(probe.stdout.strip()))
