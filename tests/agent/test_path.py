"""The start of a Python process of a measured script: it imports nothing that the script could notice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from epochmeter.agent import path, thread_times
from epochmeter.shared import events

FOLDER = Path(path.__path__[0])


def run(script: Path, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a script as a measured one; there is no controller."""
    settings = json.dumps({"socket": f"{script.parent}/link", "logs": "", "folder": ""})
    agent = {} if events.UNMEASURED_VARIABLE in variables else {events.AGENT_VARIABLE: settings}
    environment = {"PYTHONPATH": str(FOLDER), **agent, **variables}
    return subprocess.run(
        [sys.executable, *(options or [str(script)])], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["json", "re", "signal", "token", "traceback", "types", "typing"])
def test_helper_finds_its_own_module_with_a_name_of_the_standard_library(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("OWN = 1\n")
    (tmp_path / "helper.py").write_text(f"import {name}\nprint({name}.OWN)\n")
    done = run(tmp_path / "helper.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_script_may_clear_its_environment_before_it_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")  # too old a version: a real one would take seconds
    (tmp_path / "script.py").write_text("import os\nos.environ.clear()\nimport torch\nprint(torch.__file__)\n")
    done = run(tmp_path / "script.py")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/torch.py\n")
    assert "1.10 or newer" in done.stderr


def test_agent_that_cannot_start_leaves_the_import_of_torch_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "json.py").write_text("OWN = 1\n")
    (tmp_path / "script.py").write_text("import json, torch\nprint(json.OWN)\n")
    done = run(tmp_path / "script.py")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith("epochmeter: not measured: ")
    assert len(done.stderr.splitlines()) == 1


def test_missing_module_that_ended_the_script_is_reported(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nos.environ.clear()\nimport absent_module\n")
    assert run(tmp_path / "script.py").returncode == 1
    assert json.loads((tmp_path / "link.missing").read_text()) == [sys.executable, "absent_module"]


def test_module_of_python_is_not_the_one_next_to_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resource.py").write_text("OWN = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "resource")
    module = thread_times.module_of_python("resource")
    assert module.getrusage(module.RUSAGE_CHILDREN).ru_utime >= 0
    import resource

    assert resource.OWN == 1  # type: ignore[attr-defined]  # the file's


def test_program_that_a_measured_process_starts_is_noted_if_it_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "script.py").write_text("import json\n")
    (tmp_path / "train.py").write_text("import torch\n")
    note = tmp_path / events.UNMEASURED
    variables = {events.UNMEASURED_VARIABLE: str(note)}
    assert run(tmp_path / "script.py", **variables).returncode == 0
    worker = f"import sys; sys.path.append({str(tmp_path)!r}); import torch"
    assert run(tmp_path, "-c", worker, **variables).returncode == 0
    assert not note.exists()
    done = run(tmp_path / "train.py", **variables)
    assert (done.returncode, done.stderr, note.exists()) == (0, "", True)


def test_error_of_another_sitecustomize_is_reported_as_without_the_agent_which_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "script.py").write_text("import torch\n")
    for text in ("raise ValueError('own')\n", "import absent_module\n"):
        (tmp_path / "sitecustomize.py").write_text(text)
        done = run(tmp_path / "script.py", PYTHONPATH=f"{FOLDER}:{tmp_path}")
        first, error, *rest = done.stderr.splitlines()
        assert (done.returncode, first) == (0, "Error in sitecustomize; set PYTHONVERBOSE for traceback:")
        assert error in ("ValueError: own", "ModuleNotFoundError: No module named 'absent_module'")
        assert len(rest) == 1, "the agent says that this torch is too old"


@pytest.mark.parametrize("end", ["sys.stderr.close()", "sys.stderr = None"])
def test_agent_that_cannot_report_leaves_the_import_of_torch_as_it_is(tmp_path: Path, end: str) -> None:
    (tmp_path / "torch.py").write_text("OWN = 1\n")
    (tmp_path / "json.py").write_text("")
    (tmp_path / "script.py").write_text(f"import sys\n{end}\nimport torch\nprint(torch.OWN)\n")
    done = run(tmp_path / "script.py")
    assert (done.returncode, done.stdout) == (0, "1\n")
