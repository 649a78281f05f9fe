"""The program `epochmeter` has all commands of a checkout, and the messages of an installed package name its own."""

import ast
import re

from epochmeter.__main__ import COMMANDS
from epochmeter.config import installation
from epochmeter.shared import tool

TABLES = ("installation.py", "interpreter.py")
"""Files with commands of a checkout that an installed package never prints."""
TEXT = "`python src/measure.py a.py`, make doctor, make ui, make .venv/.with-report; `src/train.py`"
OWN_TEXT = "`epochmeter run a.py`, epochmeter doctor, mlflow ui, INSTALL; `src/train.py`"


def test_program_has_the_commands_of_a_checkout():
    entries = installation.PACKAGE.parent.glob("*.py")
    assert {module for module, _ in COMMANDS.values()} == {path.stem for path in entries}


def test_no_message_names_a_command_that_an_installed_package_lacks(monkeypatch):
    monkeypatch.setattr(installation, "IS_INSTALLED", True)
    assert installation.with_own_commands(TEXT) == OWN_TEXT.replace("INSTALL", tool.install_command("report"))
    assert installation.with_own_commands("make jtop") == tool.install_command("jetson")
    sources = [path for path in installation.PACKAGE.rglob("*.py") if path.name not in TABLES]
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text())))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    texts += [path.read_text() for path in (*installation.PACKAGE.rglob("*.j2"), *installation.CONF.rglob("*.yaml"))]
    commands = r".*(?:python src/\w|`make |make \.venv|make (?:ui|jtop|optuna|slurm|tensorboard)\b).*"
    assert [match for text in texts for match in re.findall(commands, installation.with_own_commands(text))] == []
