"""The program that measures a script with a `Meter`: it need not be in the environment of the script."""

import os
import shlex
import shutil
import sys
from typing import Dict, List, Mapping, Optional, Tuple

from epochmeter.shared import tool

VARIABLE = "EPOCHMETER_CONTROLLER"
"""Environment variable with the command of a controller, such as `/opt/epochmeter/bin/epochmeter`."""
SOURCE = os.path.dirname(tool.PACKAGE)
PROGRAM = """
import sys
source, paths = sys.argv.pop(1), [path for path in sys.path if path]
sys.path[:] = paths if source in paths else [source, *paths]
from epochmeter.__main__ import start
start("measure")
"""
"""Program of a controller; it must not import modules of the current folder, such as the script's own `json.py`.

`source` is not moved to the front: it may be site-packages, which must not hide modules of the standard library.
"""
OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")  # which another Python must not get
NONE_FOUND = "this Python lacks {}, and there is no other `epochmeter` on PATH, nor in " + VARIABLE


class NoControllerError(RuntimeError):
    """There is no program to measure a script with."""


def find_controller(environment: Mapping[str, str]) -> Tuple[List[str], Dict[str, str]]:
    """Return the begin of the command that starts a controller, and its environment.

    It is the one that `EPOCHMETER_CONTROLLER` names, else this Python, if it has the packages, else `epochmeter` on
    PATH. NoControllerError if there is none.
    """
    missing = tool.missing_packages() if sys.version_info >= tool.MIN_PYTHON else ["Python 3.10"]
    named = shlex.split(environment.get(VARIABLE, ""))
    if not (named or missing):
        return [sys.executable, "-c", PROGRAM, SOURCE], dict(environment)
    program = named or _on_path(environment.get("PATH", ""))
    if not program:
        raise NoControllerError(NONE_FOUND.format(", ".join(missing)))
    kept = {name: value for name, value in environment.items() if name not in OF_THIS_PYTHON}
    return [*program, "run"], kept


def _on_path(folders: str) -> List[str]:
    """Return the program `epochmeter` on a PATH, without that of this Python, which lacks packages."""
    own_folder = os.path.realpath(os.path.join(sys.prefix, "bin"))
    others = [folder for folder in folders.split(os.pathsep) if os.path.realpath(folder) != own_folder]
    found: Optional[str] = shutil.which("epochmeter", path=os.pathsep.join(others))
    return [found] if found else []
