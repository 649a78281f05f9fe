"""The training process's memory does not grow with the steps of an epoch."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system
SOURCE = Path(__file__).parents[2] / "src"
BOUND_MB = 20
FEW, MANY = 2_000, 200_000
EPOCHS = """
import itertools, psutil, sys, torch
from epochmeter.worker.clock import Clock
from epochmeter.worker.timeline import HostTimeline
from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.precision import NullContext, NullScaler
from epochmeter.worker.tasks import Classification

torch.set_num_threads(1)
device, task = torch.device("cpu"), Classification(auxiliary=0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batch = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
clock = Clock(HostTimeline())

def peak_after(steps):
    highest = 0
    process = psutil.Process()
    def batches():
        nonlocal highest
        for step in range(steps):
            if step % 1000 == 999:
                highest = max(highest, process.memory_info().rss)
            yield batch
    tally = EpochStats(task, device)
    clock.open()
    train(model, clock.batches(batches(), lambda batch: batch), task, optimizer, tally, NullContext(), NullScaler())
    clock.close()
    assert clock.parts()["steps"] == tally.samples == steps
    return max(highest, process.memory_info().rss)

print(*(peak_after(int(steps)) for steps in sys.argv[1:]))
"""


def test_memory_does_not_grow_with_the_steps_of_an_epoch():
    command = [sys.executable, "-c", EPOCHS, str(FEW), str(MANY)]
    few, many = map(int, subprocess.check_output(command, text=True, env={"PYTHONPATH": str(SOURCE)}).split())
    assert (many - few) / 1e6 <= BOUND_MB
