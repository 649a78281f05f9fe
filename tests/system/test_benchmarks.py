"""Every benchmark of `make bench` works: a few samples of each, in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.system
BENCHES = re.search(r"^BENCHES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
RUN_BY_HAND = {"faults", "slurm_demo"}
"""`make faults` takes hours and `make slurm-demo` needs a cluster: both have system tests of their own."""


@pytest.mark.parametrize("name", BENCHES)
def test_a_short_benchmark_prints_numbers(project, name):
    for folder in ("benchmarks", "tests"):
        shutil.copytree(ROOT / folder, project.root / folder)
    paths = os.pathsep.join(str(project.root / folder) for folder in ("src", "tests"))
    result = subprocess.run(
        [sys.executable, str(project.root / "benchmarks" / f"{name}.py"), "--short"],
        cwd=project.root, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    tables = result.stdout.split("(SHORT RUN")[1:]
    assert tables
    for table in tables:
        header, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
        assert rows
        assert any(re.search(r"\d", row) for row in rows), header


def test_make_bench_runs_every_benchmark():
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text()}
    assert programs == {*BENCHES, *RUN_BY_HAND}
