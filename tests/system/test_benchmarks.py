"""Every benchmark of `make bench` prints its tables with a few samples."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
from project import ENVIRONMENT, ROOT

LONG = (
    "account", "communication", "exporters", "hooks", "memory_kinds", "peers", "predictions", "ranks", "replay",
    "report", "residual", "roofline", "scale", "script_flops", "script_loader", "scripts", "staging", "start",
    "stragglers", "sweep", "watchers",
)  # fmt: skip
"""Benchmarks that take more than 20 s, even with a few samples."""
BENCHES = [
    pytest.param(str(path.relative_to(ROOT)), marks=pytest.mark.nightly if path.stem in LONG else pytest.mark.system)
    for folder in ("accuracy", "cost", "decisions")
    for path in sorted((ROOT / "benchmarks" / folder).glob("*.py"))
    if not path.name.startswith("gpu_")
]


@pytest.fixture(scope="module")
def root(new_project):
    """A project with the benchmarks."""
    root = new_project().root
    for folder in ("benchmarks", "tests"):
        shutil.copytree(ROOT / folder, root / folder)
    return root


@pytest.mark.parametrize("program", BENCHES)
def test_short_benchmark_prints_numbers(root, program):
    paths = os.pathsep.join(str(root / folder) for folder in ("src", "tests", "benchmarks"))
    command, environment = [sys.executable, program, "--short"], {**ENVIRONMENT, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tables = done.stdout.split("(SHORT RUN")[1:]
    assert tables
    for table in tables:
        header, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
        assert any(re.search(r"\d", row) for row in rows), header


@pytest.mark.nightly
def test_run_is_completed_by_the_same_command_after_a_fault(template, monkeypatch):
    """In a copy of the tests' own project, as creating one takes as long as the run."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("fault_benchmark", ROOT / "benchmarks/robustness/faults.py")
    spec.loader.exec_module(faults := importlib.util.module_from_spec(spec))
    monkeypatch.setattr(faults, "copy_sources", lambda root: shutil.copytree(template, root, dirs_exist_ok=True))
    monkeypatch.setattr(faults, "set_up", lambda root: None)
    monkeypatch.setattr(faults, "ARGUMENTS", ["--each", "1", "SIGKILL of the controller"])
    assert faults.main() == 0
