"""Start and end of a run: how long it takes to the end of the first training step, and after the end of training.

The start is compared with a bare script, the end with a run without a profiler's trace. Creating the dataset and the
database and preparing the page cache do not count.
"""

from __future__ import annotations

import subprocess
import sys
import time

from jobs import trained
from output import print_table, sized
from pairs import median

from epochmeter.config.job import ROOT
from epochmeter.shared.record import INTERVALS

PAIRS = sized(9, 2)
BARE = """
import time, torch
from torch.utils.data import DataLoader
from epochmeter.worker.data.images import ImageFiles
from epochmeter.worker.data.transforms import preprocessing
from epochmeter.worker.models.lenet import LeNet
digits = {"size": 32, "channels": 1, "normalize": {"mean": [0.5], "std": [0.5]}}
samples = ImageFiles("data/digits", "train", preprocessing(digits, "train"))
model = LeNet(1, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for inputs, targets in DataLoader(samples, batch_size=16, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    break
print(time.monotonic_ns())
"""
ARGUMENTS = ["model=lenet", "dataset=digits", "batch=16", "workers=0", "epochs=1"]
ARGUMENTS += ["cache=keep", "evaluate=false"]


def script_s() -> float:
    """Return the seconds from the start of a plain script to the end of its first step."""
    begun_ns = time.monotonic_ns()
    output = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return (int(output) - begun_ns) / 1e9


def epochmeter_s() -> float:
    """Return the seconds from the command to the end of its first step, from its record."""
    begun_ns = time.monotonic_ns()
    (record,) = trained(*ARGUMENTS, "profiler=none")
    first = record.steps()[: len(INTERVALS)]
    gap_s, _, copy_s, compute_s = first
    return (record.windows()[0]["opened_ns"] - begun_ns) / 1e9 + gap_s + copy_s + compute_s


def finish_s(profiler: str) -> float:
    """Return the seconds from the end of the last epoch to the end of the command."""
    (record,) = trained(*ARGUMENTS, f"profiler={profiler}")
    return (time.monotonic_ns() - record.windows()[-1]["closed_ns"]) / 1e9


def cells(name: str, seconds: list[float]) -> list[str]:
    """Return the cells of a row."""
    row = median(seconds)
    return [name, f"{row.median:.2f}", f"{row.quartiles[0]:.2f} .. {row.quartiles[1]:.2f}", str(row.pairs)]


def main() -> None:
    trained(*ARGUMENTS)  # creates dataset and database
    script_s()
    both = [(epochmeter_s(), script_s()) for _ in range(PAIRS)]
    results = {
        "epochmeter": [measured for measured, _ in both],
        "bare script": [plain for _, plain in both],
        "difference": [measured - plain for measured, plain in both],
    }
    columns = ("", "median s", "quartiles s", "pairs")
    rows = [cells(name, seconds) for name, seconds in results.items()]
    print_table("From the command to the end of the first step", columns, rows)
    ends = [(finish_s("torch"), finish_s("none")) for _ in range(PAIRS)]
    results = {
        "profiler=torch": [traced for traced, _ in ends],
        "profiler=none": [plain for _, plain in ends],
        "difference": [traced - plain for traced, plain in ends],
    }
    rows = [cells(name, seconds) for name, seconds in results.items()]
    print_table("From the end of training to the end of the command", columns, rows)


if __name__ == "__main__":
    main()
