"""Every benchmark of `make bench` can be imported, and a sample of them prints its table."""

import os
import re
import shutil
import subprocess
import sys

import pytest
from project import ROOT

pytestmark = pytest.mark.system
BENCHES = re.search(r"^BENCHES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
SAMPLE = ["stalls", "energy"]
"""One with a pipeline of known times, and one with known power."""


def run_python(root, *arguments):
    """Run Python in a folder, with the modules of the sources, the tests and the benchmarks in it."""
    paths = os.pathsep.join(str(root / folder) for folder in ("src", "tests", "benchmarks"))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SAMPLE)
def test_a_short_benchmark_prints_numbers(project, name):
    for folder in ("benchmarks", "tests"):
        shutil.copytree(ROOT / folder, project.root / folder)
    tables = run_python(project.root, f"benchmarks/{name}.py", "--short").split("(SHORT RUN")[1:]
    assert tables
    for table in tables:
        header, _, *rows = [line for line in table.splitlines() if line.startswith("|")]
        assert rows
        assert any(re.search(r"\d", row) for row in rows), header


def test_memory_does_not_grow_with_the_steps_of_an_epoch():
    table = run_python(ROOT, "benchmarks/memory.py")
    steps, _, more_mb = [cell.strip() for cell in table.strip().splitlines()[-1].strip("|").split("|")]
    assert steps == "200,000"
    assert float(more_mb) <= 20


def test_all_benchmarks_can_be_imported():
    run_python(ROOT, "-c", f"import {', '.join(BENCHES)}")
