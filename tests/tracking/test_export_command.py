"""Exports by the command: of a sweep, with an exporter that fails."""

import os
from pathlib import Path

import pytest
from tracking import recording
from tracking.recording import named

KEY = "0123456789abcdef0123456789abcdef01234567"


def test_sweep_is_exported_and_a_failing_exporter_is_one_warning(project, recorded):
    exporters = f"tracking.also=[{named(recording.Recording)},{named(recording.Failing)}]"
    environment = {name: os.environ[name] for name in ("RECORDED", "PYTHONPATH")} | {"WANDB_API_KEY": KEY}
    done = project.run("train", *project.stubbed("-m", exporters, repeat="0,1"), check=True, **environment)
    output = " ".join((done.stdout + done.stderr).split())
    (sweep,) = project.sweeps()
    assert output.count("warning: not exported") == 1
    assert f"python src/publish.py --also {named(recording.Failing)} multirun/{sweep.name}" in output
    runs = {}
    for call, *arguments in recorded():
        runs.setdefault(call, []).append(arguments)
    records = project.records()
    assert [run["group"] for (run,) in runs["close"]] == [sweep.name] * 2
    assert [run["record_id"] for (run,) in runs["close"]] == [record.run()["record_id"] for record in records]
    assert [run["metrics"].keys() for (run,) in runs["close"]] == [
        record.summary()["metrics"].keys() for record in records
    ]
    expected = [[window["epoch"], window["metrics"]] for record in records for window in record.windows()]
    assert [[epoch, metrics.keys()] for epoch, metrics in runs["log"]] == [
        [epoch, {name for name, value in metrics.items() if value is not None}] for epoch, metrics in expected
    ]
    for path in project.root.glob("multirun/**/*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_unusable_exporter_ends_the_command_before_training(project):
    done = project.run("train", *project.stubbed(**{"tracking.also": "no_module:Exporter"}))
    assert done.returncode != 0
    assert "no_module" in done.stderr
    assert "hint:" in done.stderr
    assert project.records() == []
    assert not Path(project.root, "multirun/.queue").exists()


SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs in DataLoader(torch.ones(16, 4), 4):
        model(inputs).sum().backward()
        optimizer.step()
    print("epoch", epoch, flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.system
@pytest.mark.parametrize(("code", "state"), [(0, "completed"), (3, "failed")])
def test_script_is_exported_with_its_epochs_and_its_end(project, recorded, code, state):
    (project.root / "own.py").write_text(SCRIPT)
    environment = {name: os.environ[name] for name in ("RECORDED", "PYTHONPATH")}
    keys = {"tracking": "none", "device": "cpu", "meter": "none", "machine.lock_dir": project.root / "locks"}
    given = [*(f"{key}={value}" for key, value in keys.items()), f"tracking.also={named(recording.Recording)}"]
    done = project.run("measure", *given, "own.py", str(code), **environment)
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (code, [f"epoch {epoch}" for epoch in range(3)])
    record = project.record()
    (_, opened), *logged, (_, closed) = recorded()
    assert opened["params"]["measure.command"] == closed["params"]["measure.command"]
    assert [(call, epoch) for call, epoch, _ in logged] == [("log", epoch) for epoch in range(3)]
    assert all(metrics["epoch/steps"] == 4 and metrics["epoch/e2e_s"] > 0 for *_, metrics in logged)
    assert (closed["state"], closed["record_id"]) == (state, record.run()["record_id"])
    assert closed["metrics"].keys() == record.summary()["metrics"].keys()
