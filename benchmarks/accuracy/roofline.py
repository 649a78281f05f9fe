"""MFU of runs that train matrix products only, which must be 95 to 100 % of the measured peak.

Each run is a new training process that measures the peaks again (`roofline.peaks=again`). The process has one
thread, so that other processes of a machine with several cores take no time from it. OMP_NUM_THREADS sets another
number.
"""

from __future__ import annotations

import os
import statistics
from itertools import pairwise
from pathlib import Path

import numpy as np
from common.jobs import trained
from common.output import ARGUMENTS, print_table, sized
from torch import nn

WIDTH = BATCH = sized(2560, 512)
"""Sizes of matrices below 32 MiB. The C library keeps their memory; for larger ones the system provides new memory at
each step, which takes several percent of the time."""
STEPS = 2


class Products(nn.Sequential):
    """(N, in_features) -> (N, out_features): linear layers without bias and activation, most of them square."""

    def __init__(self, in_features: int, out_features: int) -> None:
        widths = [in_features, in_features, in_features, out_features]
        super().__init__(*(nn.Linear(*pair, bias=False) for pair in pairwise(widths)))


def job(runs: int) -> list[str]:
    """Return the arguments for a number of runs on large batches of random samples."""
    dataset = ["dataset=polynomial", f"dataset.features={WIDTH}", f"dataset.count={STEPS * BATCH}"]
    dataset += ["synthetic_batches=true"]
    training = [f"batch={BATCH}", "epochs=2", "evaluate=false", "workers=0", "profiler=none"]
    model = ["model._target_=accuracy.roofline.Products", "optimizer.lr=0"]
    return ["-m", *dataset, *training, *model, "roofline.peaks=again", "sweep.again=true", f"sweep.repeats={runs}"]


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")))
    runs = int(ARGUMENTS[0]) if ARGUMENTS else sized(10, 1)
    every = [record.summary()["metrics"] for record in trained(*job(runs))]
    metrics = [run for run in every if "steady/mfu" in run]  # other processes disturbed the peaks of the others
    row = [f"{len(metrics)} of {len(every)}", *(mfu_cells(metrics) if metrics else [])]
    columns = ("runs with MFU", "median MFU", "5th .. 95th percentile", "smallest .. largest")
    columns += ("standard deviation / mean", "from 95 to 100 %", "peak GFLOP/s")
    print_table("MFU of runs of matrix products", columns[: len(row)], [row])


def mfu_cells(metrics: list[dict[str, float]]) -> list[str]:
    """Return the distribution of the MFU over runs, and the median peak."""
    mfu = sorted(run["steady/mfu"] for run in metrics)
    peaks = [run["roofline/peak_flop_per_s"] for run in metrics]
    spread = statistics.stdev(mfu) / statistics.fmean(mfu) if len(mfu) > 1 else 0.0
    low, high = np.percentile(mfu, (5, 95))
    ranges = (f"{first:.1%} .. {last:.1%}" for first, last in ((low, high), (mfu[0], mfu[-1])))
    good = sum(0.95 <= value <= 1 for value in mfu)
    return [f"{statistics.median(mfu):.1%}", *ranges, f"{spread:.1%}", f"{good} of {len(mfu)}",
            f"{statistics.median(peaks) / 1e9:.0f}"]  # fmt: skip


if __name__ == "__main__":
    main()
