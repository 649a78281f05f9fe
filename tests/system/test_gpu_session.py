"""The session on a GPU machine runs each of its steps on a CPU, so that none stops to work unnoticed."""

import csv
import json
import os
import re
import subprocess
import tarfile

import pytest
from project import ROOT

from epochmeter.results.validation import STATES
from epochmeter.validation.checks import CHECKS

pytestmark = pytest.mark.system
SCRIPT = ROOT / "benchmarks/gpu/session.sh"
FIRST = ["doctor", "tests", "validate"]
REST = ["validate_rest", "script", "trace", "trace_view", "roofline", "ranks"]


def test_every_step_runs_on_a_cpu(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([SCRIPT, tmp_path, "--dry"], capture_output=True, text=True, timeout=1500, env=environment)
    with (tmp_path / "steps.csv").open() as file:
        steps = {row["step"]: int(row["code"]) for row in csv.DictReader(file)}
    assert sorted(steps) == sorted([*FIRST, *REST, "summary"]), done.stderr
    assert [*steps][-1] == "summary"
    assert {name: code for name, code in steps.items() if code not in ((0, 2, 3) if "validate" in name else (0,))} == {}
    assert done.returncode == (2 in steps.values()) or done.returncode == 0
    summary = (tmp_path / "summary.md").read_text()
    assert "Not measured" not in summary
    for title in ("Steps", "Validation", "A script, measured", "Memory by kind", "Two ranks"):
        assert f"## {title}\n\n" in summary
    document = json.loads((tmp_path / "validation/validation.json").read_text())
    assert {line["state"] for line in document["lines"]} <= {*STATES}
    assert {line["check"] for line in document["lines"]} == {check.name for check in CHECKS}
    assert {"stall", "fetch", "prep"} <= {line["check"] for line in document["lines"] if line["value"] is not None}
    with tarfile.open(tmp_path / "logs.tar.gz") as logs:
        again = logs.extractfile("logs/validate_rest.txt").read().decode()
    assert f"{len(CHECKS) - 1} of {len(CHECKS)} checks are finished" in again
    with tarfile.open(tmp_path / "records.tar.gz") as records:
        assert {"./script/0/summary.json", "./trace/0/summary.json", "./ranks/0/summary.json"} <= {*records.getnames()}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) <= 8
    assert sum(path.stat().st_size for path in files) < 16e6


@pytest.mark.parametrize("arguments", [[], ["--nonsense"], ["a", "--nonsense"]])
def test_wrong_arguments_show_the_usage(tmp_path, arguments):
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "--dry" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_session_changes_no_setting_and_installs_nothing():
    text = SCRIPT.read_text()
    commands = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert (
        re.findall(r"settings=true|power_limit=|clocks=|fan=|nvidia-smi|\b(?:pip|uv|make|sudo|apt)\b", commands) == []
    )
