"""Errors of commands that are run by a Python that cannot run them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from epochmeter.config import interpreter

ROOT = Path(__file__).parents[2]
OLD = [path for version in ("36", "38") if (path := ROOT / f".py{version}" / "bin" / "python").exists()]


@pytest.fixture
def project(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def typed(python, project, *command):
    return subprocess.run([str(python), *command], cwd=project, capture_output=True, text=True, timeout=60)


def test_the_projects_own_python_can_run_the_commands():
    assert interpreter.missing_requirements() == ""


@pytest.mark.parametrize("entry", ["train", "report", "doctor", "publish"])
def test_a_python_without_the_libraries_is_refused_with_the_commands_to_run(project, entry):
    done = typed(sys.executable, project, "-S", f"src/{entry}.py", "model=lenet")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: `{sys.executable}` lacks hydra, mlflow, psutil, rich\n"
        f"  hint: run `make setup` once, then `.venv/bin/python src/{entry}.py model=lenet`\n"
    )


def test_an_existing_environment_needs_no_setup(project):
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    done = typed(sys.executable, project, "-S", "src/train.py", "where={model: lenet}")
    assert done.stderr.endswith("hint: run `.venv/bin/python src/train.py 'where={model: lenet}'`\n")


def test_the_hint_has_paths_relative_to_the_working_directory(project):
    done = typed(sys.executable, project / "src", "-S", "train.py")
    assert f"run `make -C {project} setup` once, then `../.venv/bin/python train.py`" in done.stderr


def test_a_python_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    assert re.search(
        r" is Python 3\.8; epochmeter needs 3\.10 or newer\n  hint: run ", interpreter.missing_requirements()
    )


@pytest.mark.system
@pytest.mark.parametrize("entry", ["train", "report", "doctor", "publish"])
@pytest.mark.parametrize("python", OLD, ids=lambda path: path.parts[-3])
def test_a_boards_own_python_reads_a_command_and_is_refused_as_too_old(project, python, entry):
    done = typed(python, project, f"src/{entry}.py")
    assert (done.returncode, done.stderr.count("\n")) == (1, 2)
    assert "epochmeter needs 3.10 or newer" in done.stderr
