"""Whether this is a checkout or a package that was installed from a wheel: its folders and its commands.

In a checkout, everything is in the project's root. An installed package contains conf/, and uses the current folder.
"""

import os
import re
import shlex
import shutil
import stat
from pathlib import Path

from epochmeter.shared import tool

PACKAGE = Path(__file__).resolve().parents[1]
IS_INSTALLED = tool.IS_INSTALLED
ROOT = Path.cwd() if IS_INSTALLED else PACKAGE.parents[1]  # folder of multirun/, data/, mlruns/ and mlflow.db
UI_ADDRESS = "http://127.0.0.1:5000"  # address at which `make ui` serves MLflow
CONF = (PACKAGE if IS_INSTALLED else ROOT) / "conf"
IMPORT_PATH = PACKAGE / "shared/path" if IS_INSTALLED else PACKAGE.parent
"""Folder from which another Python imports this package, and nothing else of this Python's site-packages."""
INSTALLED_COMMANDS = {
    r"python src/measure\.py": "epochmeter run",
    r"python src/(train|watch|report|doctor|validate|publish)\.py": r"epochmeter \1",
    r"\bmake (train|watch|report|doctor|validate|publish)\b": r"epochmeter \1",
    r"`make ui`, or by `mlflow ui` in the project's root": "`mlflow ui` in this folder",
    r"\bmake ui\b": "mlflow ui",
    r"\bmake tensorboard\b": "tensorboard --logdir multirun",
}
"""Pattern of a checkout's command in a message -> the command of an installed package."""
EXTRA_TARGET = r"\bmake (?:\.venv/\.with-)?(optuna|report|tensorboard|jtop)\b"
EXTRAS = {"jtop": "jetson"}
"""Target that installs an extra -> the extra, if it has another name."""


def python_path() -> str:
    """Return a PYTHONPATH with this package before the modules of the user's own."""
    return os.pathsep.join(filter(None, (str(IMPORT_PATH), os.environ.get("PYTHONPATH"))))


def code_cache() -> Path | None:
    """Return the folder for code that can be made again, such as compiled templates; None if others may write to it.

    It, and each folder above it, must be this user's or root's, as anybody who can replace it can run code.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = cache.resolve() / "epochmeter/code"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        statuses = [path.lstat() for path in (folder, *folder.parents)]
        if all(map(_is_safe, statuses)) and stat.S_IMODE(statuses[0].st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError:
        return None
    return folder if all(map(_is_safe, statuses)) else None


def _is_safe(status: os.stat_result) -> bool:
    """Return whether only this user and root can rename what is in a folder; in a sticky one, only its owner can."""
    is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.getuid()) and not is_shared


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, from any folder."""
    if IS_INSTALLED:
        return tool.install_command(extra)
    place = "" if Path.cwd() == ROOT else f"-C {shlex.quote(str(ROOT))} "
    return f"make {place}.venv/.with-{extra}"


def package_command(requirement: str) -> str:
    """Return the command that installs a package for this Python; a checkout may have an installer of its own."""
    own = str(ROOT / ".uv/bin/uv")
    is_own = not IS_INSTALLED and not shutil.which("uv") and os.access(own, os.X_OK)
    return tool.package_command(requirement, own if is_own else "uv")


def with_own_commands(text: str) -> str:
    """Return a message whose commands exist: in an installed package, `epochmeter train` for `python src/train.py`."""
    if IS_INSTALLED:
        for pattern, command in INSTALLED_COMMANDS.items():
            text = re.sub(pattern, command, text)
        text = re.sub(EXTRA_TARGET, lambda target: install_command(EXTRAS.get(target[1], target[1])), text)
    return text


def display_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
