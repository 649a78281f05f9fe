"""What a person is told who types a command with a Python that is not the project's."""

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


def test_the_projects_own_python_lacks_nothing():
    assert interpreter.lack() == ""


@pytest.mark.parametrize("entry", ["train", "report", "doctor", "publish"])
def test_a_python_without_the_libraries_is_told_what_to_type_in_one_line(project, entry):
    done = typed(sys.executable, project, "-S", f"src/{entry}.py", "model=lenet")
    assert done.returncode == 1
    assert done.stderr == (
        f"{sys.executable} has no hydra, mlflow, psutil, rich, which epochmeter needs. Type `make setup` once, then: "
        f".venv/bin/python src/{entry}.py model=lenet\n"
    )


def test_where_the_environment_is_made_it_is_named_alone(project):
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    done = typed(sys.executable, project, "-S", "src/train.py", "where={model: lenet}")
    assert done.stderr.endswith("needs. Type: .venv/bin/python src/train.py 'where={model: lenet}'\n")


def test_from_another_folder_the_projects_is_named(project):
    done = typed(sys.executable, project / "src", "-S", "train.py")
    assert f"Type `make -C {project} setup` once, then: ../.venv/bin/python train.py" in done.stderr


def test_a_python_that_is_too_old_is_told_so(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    assert re.search(r" is Python 3\.8, and epochmeter needs 3\.10 or newer\. Type", interpreter.lack())


@pytest.mark.system
@pytest.mark.parametrize("entry", ["train", "report", "doctor", "publish"])
@pytest.mark.parametrize("python", OLD, ids=lambda path: path.parts[-3])
def test_a_boards_own_python_reads_an_entry_and_is_told_to_be_too_old(project, python, entry):
    done = typed(python, project, f"src/{entry}.py")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "epochmeter needs 3.10 or newer" in done.stderr
