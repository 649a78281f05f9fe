"""The report as a person runs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import rows, trained, write

from train import show
from trainmeter.outcome import Outcome

ROOT = Path(__file__).parents[1]


@pytest.fixture
def report(tmp_path):
    """report("sweep=...") -> how the command ended, in a project of its own."""
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "src/report.py", *arguments],
            cwd=tmp_path,
            env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, "COLUMNS": "80"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_without_runs_it_says_what_to_run_first_and_then_tells_the_last_sweep(report, tmp_path):
    ended = report()
    assert ended.returncode == 1
    assert "python src/train.py -m experiment=stalls" in ended.stderr
    folder = tmp_path / "multirun/2026-11-20_12-00-00-1a2b3c4d"
    for each in rows([5.5, 5.6], [6.7, 6.8], [12.0, 12.1]):
        write(folder, each)
    ended = report()
    assert ended.returncode == 0, ended.stderr
    assert "resnet18 on jpeg, batch 64, 4 workers: storage-bound: of 12.1 s an epoch" in " ".join(ended.stdout.split())
    assert {"stalls.json", "stalls.md"} <= {path.name for path in folder.iterdir()}


@pytest.mark.system
def test_a_sweep_that_is_not_there_is_said_with_the_last_that_is(report):
    ended = report("sweep=2026-01-01_00-00-00-aa")
    assert ended.returncode == 1
    assert "no runs there" in ended.stderr
    assert "python src/train.py" in ended.stderr


def test_a_sweep_ends_with_what_its_runs_tell_beside_each_other(tmp_path, capsys):
    found = [trained(0, 100.0), trained(1, 190.0, strategy="ddp", ranks=2)]
    ended = [Outcome(each.number, ["strategy=x"], of_sweep=True, folder=write(tmp_path, each).folder) for each in found]
    show(ended)
    assert "1.90 times the samples/s of one device" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "scaling.md").exists()


def test_a_single_run_and_a_plain_sweep_end_without(tmp_path, capsys):
    alone = Outcome(0, [], folder=write(tmp_path / "alone", trained(0, 100.0, strategy="ddp", ranks=2)).folder)
    show([alone])
    assert capsys.readouterr().out == ""
    found = [trained(0, 100.0), trained(1, 190.0, batch=128)]
    show([Outcome(each.number, [], of_sweep=True, folder=write(tmp_path / "plain", each).folder) for each in found])
    assert "samples/s of one device" not in capsys.readouterr().out
    assert not list((tmp_path / "plain").glob("*.md"))
