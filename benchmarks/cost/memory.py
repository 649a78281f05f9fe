"""Memory that a long epoch keeps: of the clock and the training loop after many steps, compared with few."""

from __future__ import annotations

import subprocess
import sys

from common.output import print_table, sized

STEPS = (2_000, sized(200_000, 4_000))
WORKER = """
import sys, torch
from torch.amp import GradScaler
from epochmeter.worker.clock import Clock
from epochmeter.worker.timeline import HostTimeline
from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.precision import NullContext
from epochmeter.worker.tasks import Classification
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(2, 4), torch.tensor([0, 1])
task, steps = Classification(auxiliary=0), int(sys.argv[1])
tally, scaler = EpochStats(task), GradScaler(enabled=False)
clock = Clock(HostTimeline())
clock.open()
loader = (batch for _ in range(steps))
train(model, clock.batches(loader, lambda batch: batch), task, optimizer, tally, NullContext(), scaler)
clock.close()
clock.parts()
print(int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024)
"""


def peak_bytes(steps: int) -> int:
    """Return the largest resident memory of a process that trains a tiny model for this number of steps."""
    return int(subprocess.run([sys.executable, "-c", WORKER, str(steps)], check=True, capture_output=True).stdout)


def main() -> None:
    few, many = (peak_bytes(steps) for steps in STEPS)
    rows = [
        [f"{STEPS[0]:,}", f"{few / 1e6:.1f}", ""],
        [f"{STEPS[1]:,}", f"{many / 1e6:.1f}", f"{(many - few) / 1e6:.1f}"],
    ]
    print_table("Memory of a long epoch", ("steps in one epoch", "peak MB", "more MB"), rows)


if __name__ == "__main__":
    main()
