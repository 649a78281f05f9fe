"""The Python that trains, or that runs a script: real programs, which answer as a Python with or without torch."""

import sys
from contextlib import nullcontext

import pytest
from default_jobs import job_of
from stub import executable

from epochmeter.config import interpreter
from epochmeter.config.script import ATTACHED, find_program
from epochmeter.run import interpreters
from epochmeter.run.interpreters import check_interpreter, choose_python, find_interpreter, probe_early

OWN, GIVEN, BOARD = None, "/given/python", "/usr/bin/python3"


def python_of(job, overrides):
    return choose_python(job, overrides).python


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """machine(environment, on PATH) -> the folder of environments: `user`, `conda` and `bare`, which has no torch."""
    for name, code in {"user": 0, "conda": 0, "bare": 1, "first": 0, "last": 1}.items():
        (tmp_path / name / "bin").mkdir(parents=True)
        for program in ("python", "own-launcher"):
            executable(tmp_path / name / "bin" / program, f"#!/bin/sh\necho {tmp_path / name}\nexit {code}\n")
    (tmp_path / "own").symlink_to(sys.prefix)

    def prepare(variables, on_path=""):
        environment = {name: str(tmp_path / value) for name, value in variables.items()}
        environment |= {"CONDA_DEFAULT_ENV": "base"} if variables.get("CONDA_PREFIX") == "bare" else {}
        monkeypatch.setattr(interpreter, "ENVIRONMENT", environment)
        monkeypatch.setenv("PATH", str(tmp_path / on_path / "bin"))
        return tmp_path

    return prepare


@pytest.mark.parametrize(
    ("variables", "on_path", "python"),
    [
        ({}, "nowhere", OWN),
        ({}, "first", "first"),
        ({}, "last", OWN),
        ({}, "own", OWN),
        ({"VIRTUAL_ENV": "own"}, "own", OWN),
        ({"VIRTUAL_ENV": "user"}, "own", "user"),
        ({"VIRTUAL_ENV": "user", "CONDA_PREFIX": "conda"}, "first", "user"),
        ({"CONDA_PREFIX": "conda"}, "conda", "conda"),
        ({"CONDA_PREFIX": "bare"}, "last", OWN),
        ({"VIRTUAL_ENV": "bare"}, "first", "bare"),
        ({"VIRTUAL_ENV": "gone"}, "first", "first"),
    ],
)  # fmt: skip
def test_script_has_the_python_that_would_run_it_without_this_command(machine, variables, on_path, python):
    folder = machine(variables, on_path)
    script, given = job_of(measure={"command": ["own.py"]}), job_of(device={"python": GIVEN})
    assert python_of(script, []) == (python and str(folder / python / "bin/python"))
    assert python_of(job_of(), []) is OWN
    assert python_of(job_of(measure={"command": ["torchrun", "own.py"]}), []) is OWN
    assert python_of(job_of(measure=script.measure.to_dict(), device={"python": GIVEN}), ["device.python=x"]) == GIVEN
    assert python_of(script, ["device.python=null"]) is OWN
    assert python_of(given, []) == GIVEN


def test_script_with_a_meter_of_its_own_runs_already(machine, monkeypatch):
    machine({"VIRTUAL_ENV": "user"}, "first")
    monkeypatch.setenv(ATTACHED, "3")
    assert python_of(job_of(measure={"command": ["own.py"]}), []) is OWN


def test_python_of_a_board_runs_scripts_if_no_environment_is_active(machine):
    script = job_of(measure={"command": ["-m", "package"]}, device={"python": BOARD})
    for variables in ({}, {"VIRTUAL_ENV": "own"}):
        machine(variables, "first")
        assert python_of(script, ["batch=8"]) == BOARD
    folder = machine({"VIRTUAL_ENV": "user"}, "first")
    assert python_of(script, ["batch=8"]) == str(folder / "user/bin/python")


SHEBANGS = [
    ("#!{folder}/user/bin/python", "user", ""),
    ("#! {folder}/user/bin/python\r", "user", ""),
    ("#!{folder}/user/bin/python -u", "user", "without the options of its first line: `-u`"),
    ("#!/usr/bin/env python", "first", ""),
    ("#!/usr/bin/env -S python -u", "first", "without the options of its first line: `-u`"),
    ("#!/usr/bin/env python -u", None, "there is no program `python -u`"),
    ("#!{folder}/bare/bin/python", None, "bare/bin/python is not Python 3.6 or newer with torch"),
    ("#!{folder}/gone/bin/python", None, "there is no program `"),
    ("#!/usr/bin/env python9", None, "there is no program `python9`"),
    ("#!/bin/sh", None, "`/bin/sh` is not Python"),
    ("#!/usr/bin/env -S uv run --script", None, "`uv` is not Python"),
    ("#!{folder}/own/bin/python", OWN, ""),
    ("import torch", None, ""),
]
"""First line of a script -> its Python, None for the one that runs it without this line, and part of the note."""


@pytest.mark.parametrize(("line", "python", "note"), SHEBANGS)
def test_first_line_of_a_script_names_its_python_if_that_can_train(machine, line, python, note):
    folder = machine({}, "first")
    script = folder / "own.py"
    script.write_text(f"{line.format(folder=folder)}\nprint()\n")
    chosen = choose_python(job_of(measure={"command": [str(script)]}), [])
    otherwise = OWN if "own" in line else str(folder / "first/bin/python")
    assert chosen.python == (str(folder / python / "bin/python") if python else otherwise)
    assert (note in chosen.note, bool(note)) == (True, bool(chosen.note))


def test_first_line_comes_before_the_python_of_a_board_and_after_the_active_environment(machine):
    folder = machine({}, "first")
    script = folder / "own.py"
    script.write_text(f"#!{folder}/user/bin/python\n")
    job = job_of(measure={"command": [str(script)]}, device={"python": BOARD})
    assert choose_python(job, []) == (str(folder / "user/bin/python"), "")
    script.write_text("#!/bin/sh\n")
    assert python_of(job, []) == BOARD
    machine({"VIRTUAL_ENV": "conda"}, "first")
    assert choose_python(job, []) == (str(folder / "conda/bin/python"), "")
    assert choose_python(job, ["device.python=x"]) == (BOARD, "")


def test_active_environment_without_torch_is_refused(machine):
    machine({"VIRTUAL_ENV": "bare"})
    with pytest.raises(ValueError, match=r"bare/bin/python is not Python 3\.6 or newer with torch\n  hint: "):
        check_interpreter(find_interpreter(python_of(job_of(measure={"command": ["own.py"]}), [])))


def test_launcher_is_that_of_the_active_environment(machine):
    folder = machine({"VIRTUAL_ENV": "user"})
    assert find_program("own-launcher") == str(folder / "user/bin/own-launcher")
    machine({"VIRTUAL_ENV": "user"}, "first")
    assert find_program("own-launcher") == str(folder / "first/bin/own-launcher")
    machine({"VIRTUAL_ENV": "user"})
    assert find_program("pytest") is None, "it would start the script with this command's packages"
    machine({})
    assert find_program("pytest")


def test_python_on_path_is_asked_while_the_configuration_is_composed(machine, monkeypatch):
    folder = machine({}, "first")
    probe_early(["own.py"])
    monkeypatch.setattr(interpreters.subprocess, "Popen", None)
    assert python_of(job_of(measure={"command": ["own.py"]}), []) == str(folder / "first/bin/python")


@pytest.mark.parametrize(("variables", "command"), [({"VIRTUAL_ENV": "user"}, "own.py"), ({}, "torchrun")])
def test_nothing_is_asked_that_the_command_does_not_need(machine, monkeypatch, variables, command):
    machine(variables, "first")
    monkeypatch.setattr(interpreters.subprocess, "Popen", None)
    probe_early([command, "own.py"])


@pytest.mark.parametrize("file", [None, "no code", "__init__.py"])
def test_interpreter_without_torch_is_refused_with_a_hint_and_torch_is_not_imported(tmp_path, file):
    if file:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / file).write_text("raise SystemExit(1)")
    python = executable(tmp_path / "python", f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} -S "$@"\n')
    refusal = pytest.raises(ValueError, match=r"is not Python 3\.6 or newer with torch\n  hint: ")
    with nullcontext() if file == "__init__.py" else refusal:
        check_interpreter(str(python))


def test_interpreter_that_does_not_exist_or_answer_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreters, "PROBE_LIMIT_S", 0.1)
    hangs = str(executable(tmp_path / "hangs", "#!/bin/sh\nexec sleep 60\n"))
    for _ in ("a run of a sweep", "the next one"):
        with pytest.raises(ValueError, match=r"did not answer within 0\.1 s\n  hint: "):
            check_interpreter(hangs)
    with pytest.raises(ValueError, match="cannot be run: Exec format error\n"):
        check_interpreter(str(executable(tmp_path / "python", "no program")))
    with pytest.raises(ValueError, match=r"`device\.python=/nowhere/python`: there is no such program\n  hint: "):
        find_interpreter("/nowhere/python")


def test_own_interpreter_trains_even_if_the_search_for_programs_does_not_find_it(monkeypatch):
    monkeypatch.setattr(
        interpreters.shutil, "which", lambda program: None
    )  # such as below a folder that denies access(2)
    assert find_interpreter(None) == sys.executable
