"""Errors of commands that are run by a Python that cannot run them."""

import subprocess
import sys
from pathlib import Path

import pytest

from epochmeter.config import interpreter

ROOT = Path(__file__).parents[2]
ENTRIES = ["train", "watch", "report", "doctor", "publish"]
OLD = [path for version in ("36", "38") if (path := ROOT / f".py{version}" / "bin" / "python").exists()]


def error_of(python, folder, *command):
    done = subprocess.run([str(python), *command], cwd=folder, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("entry", ENTRIES)
def test_python_without_the_libraries_is_refused_with_the_commands_to_run(sources, entry):
    error, hint = error_of(sys.executable, sources, "-S", f"src/{entry}.py", "model=lenet").splitlines()
    assert error == f"error: `{sys.executable}` lacks hydra, mlflow, psutil, rich"
    assert hint == f"  hint: run `make setup` once, then `.venv/bin/python src/{entry}.py model=lenet`"


def test_python_that_is_too_old_is_refused_with_a_command_that_quotes_the_arguments(tmp_path, monkeypatch):
    assert interpreter.missing_requirements() == ""
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    monkeypatch.setattr(interpreter, "ROOT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py", "where={model: lenet}"])
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    problem, hint = interpreter.missing_requirements().splitlines()
    assert problem.endswith(" is Python 3.8; epochmeter needs 3.10 or newer")
    command = "`../.venv/bin/python train.py 'where={model: lenet}'`"
    assert hint == f"  hint: run `make -C {tmp_path} setup` once, then {command}"


@pytest.mark.system
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("python", OLD, ids=lambda path: path.parts[-3])
def test_python_of_an_old_board_reads_the_command_and_is_refused(sources, python, entry):
    error, hint = error_of(python, sources, f"src/{entry}.py").splitlines()
    assert "epochmeter needs 3.10 or newer" in error
    assert hint.startswith("  hint: ")
