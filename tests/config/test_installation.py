"""Messages of an installed package name its own commands, not those of a checkout."""

import ast
import re

import pytest

from epochmeter.__main__ import COMMANDS
from epochmeter.config import installation

TABLES = ("installation.py", "interpreter.py")
"""Files with commands of a checkout that an installed package never prints."""


@pytest.fixture
def with_own_commands(monkeypatch):
    monkeypatch.setattr(installation, "IS_INSTALLED", True)
    return installation.with_own_commands


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hint: `python src/measure.py train.py`", "hint: `epochmeter run train.py`"),
        ("`make doctor`, python src/train.py -m a=b", "`epochmeter doctor`, epochmeter train -m a=b"),
        ("make ui, then http://", "mlflow ui, then http://"),
        ("make .venv/.with-report", "pip install 'epochmeter[report]'"),
        ("`src/train.py` is not a file; make sure", "`src/train.py` is not a file; make sure"),
    ],
)
def test_commands_in_messages_are_those_of_the_installation(with_own_commands, text, expected):
    assert with_own_commands(text) == expected


def test_program_has_the_commands_of_a_checkout():
    assert {module for module, _ in COMMANDS.values()} == {
        path.stem for path in installation.PACKAGE.parent.glob("*.py")
    }


def test_no_message_names_a_command_that_an_installed_package_lacks(with_own_commands):
    sources = [path for path in installation.PACKAGE.rglob("*.py") if path.name not in TABLES]
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text())))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    texts += [path.read_text() for path in (*installation.PACKAGE.rglob("*.j2"), *installation.CONF.rglob("*.yaml"))]
    commands = r".*(?:python src/\w|`make |make \.venv|make (?:ui|jtop|optuna|slurm|tensorboard)\b).*"
    assert [match for text in texts for match in re.findall(commands, with_own_commands(text))] == []
