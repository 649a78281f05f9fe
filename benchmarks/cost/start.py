"""Start and end of a run: how long it takes to the end of the first training step, and after the end of training.

The start is compared with a bare script, the end with a run without a profiler's trace. Creating the dataset and the
database and preparing the page cache do not count.
"""

from __future__ import annotations

import subprocess
import sys
import time

from common.jobs import trained
from common.output import SHORT, print_table, sized
from common.pairs import median

from epochmeter.config.installation import ROOT
from epochmeter.shared.record import INTERVALS

PAIRS = sized(9, 1)
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


def run_s(profiler: str) -> tuple[float, float]:
    """Return the seconds from the command to the end of the first step, and from the end of training to its end."""
    begun_ns = time.monotonic_ns()
    (record,) = trained(*ARGUMENTS, f"profiler={profiler}")
    ended_ns = time.monotonic_ns()
    gap_s, _, copy_s, compute_s = record.steps()[: len(INTERVALS)]
    opened, closed = record.windows()[0]["opened_ns"], record.windows()[-1]["closed_ns"]
    return (opened - begun_ns) / 1e9 + gap_s + copy_s + compute_s, (ended_ns - closed) / 1e9


def cells(name: str, seconds: list[float]) -> list[str]:
    """Return the cells of a row."""
    row = median(seconds)
    return [name, f"{row.median:.2f}", f"{row.quartiles[0]:.2f} .. {row.quartiles[1]:.2f}", str(row.pairs)]


def show(title: str, first: str, second: str, pairs: list[tuple[float, float]]) -> None:
    """Print the table of two durations and their difference."""
    results = {
        first: [one for one, _ in pairs],
        second: [other for _, other in pairs],
        "difference": [one - other for one, other in pairs],
    }
    columns = ("", "median s", "quartiles s", "pairs")
    print_table(title, columns, [cells(name, seconds) for name, seconds in results.items()])


def main() -> None:
    if not SHORT:
        trained(*ARGUMENTS)  # creates dataset and database
        script_s()
    runs = [(run_s("none"), script_s(), run_s("torch")) for _ in range(PAIRS)]
    starts = [(start_s, bare_s) for (start_s, _), bare_s, _ in runs]
    show("From the command to the end of the first step", "epochmeter", "bare script", starts)
    ends = [(traced_s, plain_s) for (_, plain_s), _, (_, traced_s) in runs]
    show("From the end of training to the end of the command", "profiler=torch", "profiler=none", ends)


if __name__ == "__main__":
    main()
