"""What is imported before a command does its work: each module takes time before the first line is shown."""

import re
import subprocess
import sys

import pytest
from project import ROOT

LARGE = {
    "matplotlib",
    "mlflow",
    "numpy",
    "pandas",
    "PIL",
    "rich",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "torch",
    "vl_convert",
}
"""Packages that take a tenth of a second or more."""
ADDED = 60  # modules that a library of another version may import in addition


def imported(*arguments: str) -> set[str]:
    """Return the modules that Python imports for these arguments."""
    command = [sys.executable, "-X", "importtime", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"^import time:.*\| +(\S+)$", ended.stderr, re.MULTILINE))


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["src/train.py", "--help"], 415),
        (["src/train.py", "--cfg", "job"], 430),
        (["src/measure.py", "--help"], 416),
        (["src/report.py", "--help"], 363),
    ],
    ids=["help of a training", "configuration", "help of a script", "help of the report"],
)
def test_help_and_configuration_import_no_large_package(arguments, count):
    modules = imported(*arguments)
    assert LARGE.isdisjoint(name.partition(".")[0] for name in modules)
    assert len(modules) <= count + ADDED


def test_a_package_that_is_imported_in_a_script_imports_only_itself():
    script = "import sys; sys.path.insert(0, 'src'); import epochmeter"
    assert imported("-c", script) - imported("-c", "pass") == {"epochmeter"}
