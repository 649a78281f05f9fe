"""Whether this is a checkout or a package that was installed from a wheel: its folders and its commands.

In a checkout, everything is in the project's root. An installed package contains conf/, and uses the current folder.
"""

import os
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
IS_INSTALLED = (PACKAGE / "conf").is_dir()  # Only the wheel has conf/ in the package
ROOT = Path.cwd() if IS_INSTALLED else PACKAGE.parents[1]  # folder of multirun/, data/, mlruns/ and mlflow.db
UI_ADDRESS = "http://127.0.0.1:5000"  # address at which `make ui` serves MLflow
CONF = (PACKAGE if IS_INSTALLED else ROOT) / "conf"
IMPORT_PATH = PACKAGE / "shared/path" if IS_INSTALLED else PACKAGE.parent
"""Folder from which another Python imports this package, and nothing else of this Python's site-packages."""
INSTALLED_COMMANDS = {
    r"python src/measure\.py": "epochmeter run",
    r"python src/(train|watch|report|doctor|publish)\.py": r"epochmeter \1",
    r"\bmake (train|watch|report|doctor|publish)\b": r"epochmeter \1",
    r"`make ui`, or by `mlflow ui` in the project's root": "`mlflow ui` in this folder",
    r"\bmake ui\b": "mlflow ui",
    r"\bmake tensorboard\b": "tensorboard --logdir multirun",
    r"\bmake jtop\b": "pip install 'epochmeter[jetson]'",
    r"\bmake (?:\.venv/\.with-)?(optuna|report|tensorboard)\b": r"pip install 'epochmeter[\1]'",
}
"""Pattern of a checkout's command in a message -> the command of an installed package."""


def python_path() -> str:
    """Return a PYTHONPATH with this package before the modules of the user's own."""
    return os.pathsep.join(filter(None, (str(IMPORT_PATH), os.environ.get("PYTHONPATH"))))


def cache_folder() -> Path:
    """Return the user's folder for files that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epochmeter"


def with_own_commands(text: str) -> str:
    """Return a message whose commands exist: in an installed package, `epochmeter train` for `python src/train.py`."""
    if IS_INSTALLED:
        for pattern, command in INSTALLED_COMMANDS.items():
            text = re.sub(pattern, command, text)
    return text


def display_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
