"""`Meter` without `measure.py`: the controller that it starts."""

import subprocess
import sys
from contextlib import closing

import pytest
from project import ENVIRONMENT

pytestmark = pytest.mark.system
SCRIPT = """
import contextlib, os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader
from epochmeter import Meter

torch.manual_seed(0)
data = [(torch.full((10,), float(number)), number % 2) for number in range(64)]
model = nn.Sequential(nn.Linear(10, 16), nn.Dropout(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(epochs, batches, after=lambda: None):
    for epoch in epochs:
        for inputs, targets in batches:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after()
        print(epoch, loss.item().hex(), flush=True)

loader = DataLoader(data, 8, shuffle=True, num_workers=2, persistent_workers=True)
"""
PLAIN = "train(range(3), loader)"
METERED = """
meter = Meter({keys})
train(meter.epochs(3), meter.batches(loader), lambda: {after})
"""


@pytest.fixture
def run(project):
    def start(lines, after="None", keys=()):
        keys = (f"machine.lock_dir={project.root / 'locks'}", "tracking=none", *keys)
        text = (SCRIPT + lines).format(keys=", ".join(map(repr, keys)), after=after)
        (project.root / "own.py").write_text(text)
        environment = {**ENVIRONMENT, "PYTHONPATH": str(project.root / "src")}
        return subprocess.run(
            [sys.executable, "own.py"],
            cwd=project.root, env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return start


def test_script_has_the_same_output_and_weights_and_a_record_and_continues_without_a_controller(run, project):
    metered, plain = run(METERED), run(PLAIN)
    record = project.record()
    assert [(window["window"], window["epoch"]) for window in record.windows()] == [("epoch", n) for n in range(3)]
    forecasts = [line["metrics"].get("forecast/e2e_s") for line in record.windows()]
    assert [forecast is not None for forecast in forecasts] == [False, True, True]
    assert record.summary()["state"] == "completed"
    assert record.job()["measure"]["command"] == ["own.py"]
    killed = run(METERED, after="os.kill(meter._controller._process.pid, signal.SIGKILL)")
    refused = run(METERED, keys=["batch=8"])
    assert killed.stdout == refused.stdout == metered.stdout == plain.stdout
    assert killed.stderr.count("the script continues") == refused.stderr.count("the script continues") == 1
    assert "`batch=` has no effect on a script" in refused.stderr
    assert len(project.records()) == 2, "none of the refused script"


def test_failure_of_the_script_is_that_of_its_run(run, project):
    assert run(METERED, after="1 / 0").returncode == 1
    failure = project.record().summary()["failure"]
    assert failure == {"kind": "exception", "message": "ZeroDivisionError: division by zero"}


class Kernel:
    """A Jupyter kernel in a project's folder."""

    def __init__(self, project):
        from jupyter_client import KernelManager

        self._manager = KernelManager(shutdown_wait_time=60)
        environment = {**ENVIRONMENT, "PYTHONPATH": str(project.root / "src")}
        self._manager.start_kernel(cwd=str(project.root), env=environment)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)

    def run(self, cell, interrupted_at=None):
        """Run a cell; return its output and the class of its error. A line of output may be where it is interrupted."""
        output = []

        def take(message):
            text = message["content"].get("text", "") if message["content"].get("name") == "stdout" else ""
            output.append(text)
            if interrupted_at and interrupted_at in text:
                self._manager.interrupt_kernel()

        reply = self._client.execute_interactive(cell, timeout=120, allow_stdin=False, output_hook=take)
        return "".join(output), reply["content"].get("ename")

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel()


def test_notebook_has_a_run_that_survives_errors_and_interrupts_of_its_cells(project):
    pytest.importorskip("ipykernel")
    keys = f"machine.lock_dir={project.root / 'locks'}", "tracking=none"
    with closing(Kernel(project)) as notebook:
        notebook.run(f"{SCRIPT}\nmeter = Meter(*{keys})")
        cell = "train(meter.epochs(2), meter.batches(loader))\nprint(meter.last.e2e_s > 0, meter.last.metrics['steps'])"
        output, error = notebook.run(cell)
        assert (output.splitlines()[-1], error) == ("True 8", None)
        assert notebook.run("train(range(1), meter.batches(loader), lambda: 1 / 0)")[1] == "ZeroDivisionError"
        cell = "for batch in meter.batches(DataLoader(data, 8)): print('waiting', flush=True); time.sleep(60)"
        assert notebook.run(cell, interrupted_at="waiting")[1] == "KeyboardInterrupt"
        output, error = notebook.run("train(range(1), meter.batches(DataLoader(data, 16)))\nmeter.close()")
        assert error is None
        record = project.record()
        steps = [line["metrics"]["epoch/steps"] for line in record.windows() if line["window"] == "epoch"]
        assert steps[:3] == [8, 8, 8]
        assert steps[-1] == 4
        assert (record.summary()["state"], record.job()["measure"]["command"]) == ("completed", ["notebook"])
        notebook.run(f"meter = Meter(*{keys})\ntrain(range(1), meter.batches(DataLoader(data, 8)))")
    *_, record = project.records()
    assert [line["metrics"]["epoch/steps"] for line in record.windows()] == [8]
    assert record.is_completed(), "also without `close`, when the kernel ends"
