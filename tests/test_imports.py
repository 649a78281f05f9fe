"""What is imported before a command does its work: each module takes time before the first line is shown."""

import re
import subprocess
import sys

import pytest
from project import ROOT

LARGE = {
    "matplotlib",
    "mlflow",
    "numpy",
    "pandas",
    "PIL",
    "rich",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "torch",
    "vl_convert",
}
"""Packages that take a tenth of a second or more."""
ADDED = 60  # modules that a library of another version may import in addition
NEEDED = {"numpy", "rich"}  # by the meter, and by the first messages
LATER = {
    *("epochmeter.run.record_end", "epochmeter.run.following", "epochmeter.run.script_loop", "epochmeter.run.recovery"),
    *("epochmeter.segmentation.script", "epochmeter.trace", "epochmeter.cluster", "epochmeter.console.tables"),
    *("epochmeter.results.next_step_rules", "multiprocessing.managers", "rich.progress", "rich.table"),
}
"""Modules and packages that a run uses only when its process has started."""
MEASURE = """
import subprocess, sys
sys.path.insert(0, "src")

class Popen(subprocess.Popen):
    def __init__(self, command, **options):
        if command[-1] == sys.argv[-1]:
            print(*sys.modules, file=sys.__stdout__)
            raise SystemExit
        super().__init__(command, **options)

subprocess.Popen = Popen
from epochmeter.__main__ import start
start("measure")
"""
"""Prints the modules that are imported when a script's process is started, which is its last argument."""
OPTIONAL = {f"epochmeter.{name}" for name in ("agent.operators", "agent.replay", "agent.tracing", "shared.record")}
"""Modules of the agent for what a script is measured for on request."""


def imported(*arguments: str) -> set[str]:
    """Return the modules that Python imports for these arguments."""
    command = [sys.executable, "-X", "importtime", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"^import time:.*\| +(\S+)$", ended.stderr, re.MULTILINE))


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["src/train.py", "--help"], 415),
        (["src/train.py", "--cfg", "job"], 430),
        (["src/measure.py", "--help"], 416),
        (["src/report.py", "--help"], 363),
    ],
    ids=["help of a training", "configuration", "help of a script", "help of the report"],
)
def test_help_and_configuration_import_no_large_package(arguments, count):
    modules = imported(*arguments)
    assert LARGE.isdisjoint(name.partition(".")[0] for name in modules)
    assert len(modules) <= count + ADDED


def test_a_package_that_is_imported_in_a_script_imports_only_itself():
    script = "import sys; sys.path.insert(0, 'src'); import epochmeter"
    assert imported("-c", script) - imported("-c", "pass") == {"epochmeter"}


def test_a_script_is_started_before_what_only_its_run_uses_is_imported(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    keys = ["tracking=none", f"machine.lock_dir={tmp_path}", f"hydra.run.dir={tmp_path}/runs/0"]
    command = [sys.executable, "-c", MEASURE, *keys, str(script)]
    modules = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert (LARGE - NEEDED).isdisjoint(name.partition(".")[0] for name in modules)
    assert [name for name in modules if any(f"{name}.".startswith(f"{later}.") for later in LATER)] == []
    assert 0 < len(modules) <= 687 + ADDED


def test_the_agent_imports_what_it_is_not_asked_for_in_no_script():
    script = "import sys; sys.path.insert(0, 'src'); import torch, epochmeter.agent.agent, epochmeter.agent.collectives"
    modules = {name for name in imported("-c", script) if name.partition(".")[0] == "epochmeter"}
    assert OPTIONAL.isdisjoint(modules)
    assert len(modules) <= 44
