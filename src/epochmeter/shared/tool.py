"""The extra `tool`, the packages of all commands: whether this Python has them, and how to install them.

A package with a `Meter` has no dependencies, since the environment of a training script may need others.
"""

import json
import os
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from typing import Iterator, List, Tuple
from urllib.parse import unquote

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
IS_INSTALLED = os.path.isdir(os.path.join(PACKAGE, "conf"))  # Only the wheel has conf/ in the package
MIN_PYTHON = (3, 10)
REQUIRED_MODULES = ("hydra", "mlflow", "psutil", "rich")  # of a checkout, whose packages are locked
REQUIREMENT = re.compile(r"([\w.-]+)\s*([^;]*); extra == .tool.$")
BOUND = re.compile(r"(>=|<)\s*([\d.]+)")


def missing_packages() -> List[str]:
    """Return what this Python lacks of the packages of all commands; a checkout's versions are not compared."""
    if not IS_INSTALLED:
        return [name for name in REQUIRED_MODULES if find_spec(name) is None]
    missing, unsuited = _compared_packages()
    return missing + ["another {}".format(found) for found in unsuited]


def tool_command() -> str:
    """Return the command that installs the extra: for this Python, or apart if that would change its packages."""
    _, unsuited = _compared_packages()
    if not unsuited:
        return install_command("tool")
    requirement = shlex.quote(_requirement_of_tool())
    for program in ("uv tool", "pipx"):
        if shutil.which(program.partition(" ")[0]):
            return "{} install {}".format(program, requirement)
    folder = "~/.local/epochmeter"
    return "{0} -m venv {1} && {1}/bin/pip install {2}".format(shlex.quote(sys.executable), folder, requirement)


def _requirement_of_tool() -> str:
    """Return the requirement of this version with the extra: of the wheel from which it was installed, if that exists.

    It may be a file of this machine, of which no index knows.
    """
    from importlib import metadata

    url = json.loads(metadata.distribution("epochmeter").read_text("direct_url.json") or "{}").get("url", "")
    is_here = url.startswith("file:") and os.path.isfile(unquote(url[len("file:") :]))
    return "epochmeter[tool]" + (" @ " + url if is_here else "")


def _compared_packages() -> Tuple[List[str], List[str]]:
    """Return the packages of the extra that an installed package lacks, and those with a version that is unsuited."""
    from importlib import metadata

    missing, unsuited = [], []
    for name, bounds in _requirements(metadata.requires("epochmeter") or []):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if not all((_release(version) >= bound) == (kind == ">=") for kind, bound in bounds):
            unsuited.append("{} than {}".format(name, version))
    return missing, unsuited


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra for this Python, with the installer that it has."""
    return package_command("epochmeter[{}]".format(extra))


def package_command(requirement: str, uv: str = "uv") -> str:
    """Return the command that installs a package for this Python, with the installer that it has."""
    if find_spec("pip") is None:  # made by uv
        program = "{} pip install --python {}".format(shlex.quote(uv), shlex.quote(sys.executable))
    elif os.path.dirname(shutil.which("pip") or "") == os.path.join(sys.prefix, "bin"):
        program = "pip install"
    else:
        program = shlex.quote(sys.executable) + " -m pip install"
    return "{} '{}'".format(program, requirement)


def _requirements(lines: List[str]) -> Iterator[Tuple[str, List[Tuple[str, Tuple[int, ...]]]]]:
    """Yield the name of each package of the extra, and the bounds of its version."""
    for line in lines:
        found = REQUIREMENT.match(line)
        if found:
            yield found.group(1), [(kind, _release(text)) for kind, text in BOUND.findall(found.group(2))]


def _release(version: str) -> Tuple[int, ...]:
    """Return the numbers of a version, such as 1.3.0 for 1.3.0rc1, without zeros at its end."""
    release = re.match(r"(?:\d+!)?([\d.]*)", version)
    numbers = [int(number) for number in release.group(1).split(".") if number] if release else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
