"""A script that ran without a controller: its record, from the events that its `Meter` has left."""

import json
import os
import subprocess
import sys
from datetime import datetime

import pytest
from project import ENVIRONMENT

from epochmeter.agent import unattended as agent_side
from epochmeter.agent.unattended import Unattended
from epochmeter.run import unattended
from epochmeter.run.unattended import kept_overrides, read_script
from epochmeter.shared.events import FOLDER_PREFIX, NO_CONTROLLER, SCRIPT_FILE
from epochmeter.shared.problem import InputError, Problem
from epochmeter.shared.process_identity import this_process
from epochmeter.shared.record import COMPLETED_FILE

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader
from epochmeter import Meter

data = [(torch.full((10,), float(number)), number % 2) for number in range(64)]
model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
meter = Meter("warmup_epochs=0", "power_limit=100")
for epoch in meter.epochs(3):
    for inputs, targets in meter.batches(DataLoader(data, 8)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        for inputs, _ in meter.batches(DataLoader(data, 16)):
            model(inputs)
    if epoch == 1:
        exec(sys.argv[1])
print(meter.last.reason)
"""


@pytest.fixture
def bare(project):
    """bare(lines) -> the ended process of a script with these lines within it, whose Python has no tool's packages."""
    (project.root / "own.py").write_text(SCRIPT)
    without = project.root / "without"
    without.mkdir()
    # `find_spec` finds no module of a name that is None in sys.modules.
    (without / "sitecustomize.py").write_text("import sys\nsys.modules.update(hydra=None, mlflow=None)\n")

    def run(lines="pass"):
        environment = {name: text for name, text in ENVIRONMENT.items() if not name.startswith("EPOCHMETER_")}
        environment |= {"PATH": "/nowhere", "PYTHONPATH": f"{without}:{project.root}/src"}
        command = [sys.executable, "own.py", lines]
        return subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True)

    return run


def left_folder(project):
    (folder,) = project.root.glob(f"{FOLDER_PREFIX}*")
    return folder


def convert(project, *keys):
    return project.run("measure", f"measure.events={left_folder(project)}", "tracking=none", *keys)


@pytest.mark.system
def test_script_without_a_controller_is_recorded_with_times_and_steps_by_a_later_command(project, bare):
    done = bare()
    assert (done.returncode, done.stdout) == (0, f"{NO_CONTROLLER}\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert f"`python src/measure.py measure.events={left_folder(project)}`" in line
    assert left_folder(project).stat().st_mode & 0o777 == 0o700
    converted = convert(project)
    assert converted.returncode == 0, converted.stderr
    record = project.record()
    windows = record.windows()
    assert [(window["window"], window["epoch"]) for window in windows] == [
        (kind, epoch) for epoch in range(3) for kind in ("epoch", "val")
    ]
    for window in windows[::2]:
        metrics = window["metrics"]
        assert (metrics["epoch/steps"], metrics["epoch/samples"]) == (8, 64)
        parts = sum(metrics[f"epoch/{part}_s"] for part in ("data_stall", "compute", "overhead"))
        assert metrics["epoch/e2e_s"] == pytest.approx(parts)
        assert window["energy"]["joules"] == {}
        assert "epoch/energy_j" not in metrics
    summary, run = record.summary(), record.run()
    assert (summary["state"], summary["metrics"]["total/epochs"]) == ("completed", 3)
    assert "steady/e2e_s" in summary["metrics"], "without warm-up, as the script's Meter requested"
    assert (run["energy"]["source"], run["energy"]["reason"]) == ("none", NO_CONTROLLER)
    assert unattended.UNUSED.format("`power_limit=`") in summary["notes"]
    assert run["name"] == "own.py warmup_epochs=0"
    ended_s = datetime.fromisoformat(summary["ended"]).timestamp()
    clock = run["clock"]
    since_s = 1e-9 * (windows[-1]["closed_ns"] - clock["monotonic_ns"])
    assert ended_s - clock["wall_s"] == pytest.approx(since_s, abs=0.001)
    assert json.loads((record.folder / COMPLETED_FILE).read_text())["finished"] == summary["ended"]
    assert (record.job()["measure"]["command"], record.job()["power_limit"]) == (["own.py"], None)
    assert list(project.root.glob(f"{FOLDER_PREFIX}*")) == []


@pytest.mark.system
@pytest.mark.parametrize(
    ("lines", "failure"),
    [("1 / 0", Problem("ZeroDivisionError: division by zero")), ("os._exit(3)", unattended.NO_END),
     ("sys.exit()", None)],
)  # fmt: skip
def test_end_of_a_script_without_a_controller_is_that_of_its_record(project, bare, lines, failure):
    bare(lines)
    assert convert(project).returncode == int(failure is not None)
    summary = project.record().summary()
    assert summary["failure"] == (failure and failure.to_fields())
    assert summary["metrics"]["total/epochs"] == 2


@pytest.mark.system
def test_error_of_the_agent_is_the_reason_for_missing_epochs(project, bare):
    done = bare("meter._agent.facts.loader_number = None")
    assert "measuring ended, the script continues: TypeError" in done.stderr
    convert(project)
    summary = project.record().summary()
    assert (summary["state"], summary["metrics"]["total/epochs"]) == ("completed", 2)
    assert any(note.startswith("TypeError") for note in summary["notes"])


@pytest.mark.system
def test_running_script_is_refused_and_its_events_stay(project, bare):
    bare("os._exit(0)")
    folder = left_folder(project)
    (facts,) = folder.glob("*.jsonl")
    lines = [json.loads(line) for line in facts.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "process":
            line["identity"] = [*this_process()]
    facts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = convert(project)
    assert refused.returncode == 1
    assert f"still runs (process {os.getpid()})" in refused.stderr
    assert (project.records(), folder.exists()) == ([], True)


@pytest.mark.system
def test_script_of_another_host_that_may_still_run_keeps_its_events_and_no_description_of_this_host(project, bare):
    bare("os._exit(0)")
    folder = left_folder(project)
    for path in (folder / SCRIPT_FILE, *folder.glob("*.jsonl")):
        path.write_text(path.read_text().replace(json.dumps(this_process().host), '"elsewhere"'))
    convert(project)
    record = project.record()
    assert unattended.MAY_RUN in record.summary()["notes"]
    assert (record.host(), record.run()["host"]) == ({"hostname": "elsewhere"}, "elsewhere")
    assert folder.exists()


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The folder of a script's events."""
    monkeypatch.chdir(tmp_path)
    Unattended("own.py", ["warmup_epochs=2", "power_limit=100", "tracking=none", "tracking.uri=x"], "there is none")
    (folder,) = tmp_path.iterdir()
    return folder


def test_facts_on_a_script_are_read_as_they_were_written_without_its_arguments(script):
    facts = read_script(script)
    assert (facts["command"], facts["reason"]) == (["own.py"], "there is none")
    assert facts["process"] == this_process()._asdict()


def test_only_keys_of_the_recorded_times_apply_and_given_ones_replace_them(script):
    facts = read_script(script)
    assert kept_overrides(facts, []) == ["warmup_epochs=2", "tracking=none"]
    assert kept_overrides(facts, ["warmup_epochs=1"]) == ["tracking=none"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda path: path.unlink(), "has no events of a script"),
        (lambda path: path.write_text("{"), "has no events of a script"),
        (lambda path: path.write_text(path.read_text().replace('"command"', '"other"')), "has no events of a script"),
        (lambda path: path.write_text(path.read_text().replace('"version": "', '"version": "x')), "another version"),
    ],
)
def test_folder_without_readable_events_is_refused(script, change, error):
    change(script / SCRIPT_FILE)
    with pytest.raises(InputError, match=error):
        read_script(script)


@pytest.mark.parametrize(
    ("folder", "argument"),
    [("/a/epochmeter-events-1", "measure.events=/a/epochmeter-events-1"),
     ("/a b/c", """'measure.events='"'"'/a b/c'"'"''"""),
     ("/it's", """'measure.events='"'"'/it\\'"'"'s'"'"''""")],
)  # fmt: skip
def test_argument_of_the_later_command_is_quoted_if_needed(folder, argument):
    assert agent_side.events_argument(folder) == argument
