"""Measurements of a script by `src/measure.py`, compared with `src/train.py` on the same job and with known waits."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from accuracy.stalls import Part
from common.gated import interleaved
from common.jobs import digits_folder, measured
from common.lenet_script import LEARNING_RATE
from common.output import print_table, sized
from common.pairs import COLUMNS, median

from epochmeter.config.installation import ROOT
from epochmeter.shared.record import Record

PAIRS, EPOCHS = sized(5, 1), sized(30, 2)
"""Pairs of processes, and measured epochs of each, after the first one."""
TURNS = sized(502, 6)
"""Epochs of one process, half of them bare."""
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = BENCHMARKS / "common"
JOB = ["model=lenet", "dataset=digits", "batch=16", "workers=0", "evaluate=false"]
JOB += [f"optimizer.lr={LEARNING_RATE}", "optimizer.momentum=0.9", "scheduler._target_=common.gated.GatedSchedule"]
JOB += ["profiler=none", "roofline.peaks=none", "cache=keep", f"epochs={EPOCHS + 2}"]
SCRIPT = [str(SCRIPTS / "lenet_script.py"), str(digits_folder()), str(EPOCHS + 2), "none"]
RESULTS = re.compile(r"^Results: (\S+)$", re.MULTILINE)
PARTS = ("e2e_s", "data_stall_s", "compute_s", "overhead_s")
CASES = {
    "0 workers": (0, 20, 1),
    "1 worker": (1, 20, 1),
    "2 workers": (2, 20, 1),
    "4 workers": (4, 20, 1),
    "1 worker, early break": (1, 12, 1),
    "0 workers, accumulation of 4": (0, 20, 4),
}
"""Workers, steps per epoch, and batches per optimizer step."""


def epochs(record: Record) -> list[dict[str, float]]:
    """Return the metrics of each epoch except the first."""
    return [window["metrics"] for window in record.windows() if window["window"] == "epoch"][1:]


def compared(locks: str) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return the metrics of the epochs that `src/measure.py` and `src/train.py` trained in turns."""
    commands = [
        [sys.executable, str(ROOT / f"src/{name}.py"), f"machine.lock_dir={locks}/{name}", "tracking=none", *arguments]
        for name, arguments in (("measure", SCRIPT), ("train", JOB))
    ]
    _, outputs = interleaved(commands, EPOCHS + 1)
    script, job = (epochs(Record(Path(RESULTS.findall(output)[0]))) for output in outputs)
    return list(zip(script[:EPOCHS], job[1:], strict=True))  # the job trains an epoch before its first turn


def per_step(pairs: list[tuple[dict[str, float], dict[str, float]]], part: str) -> list[str]:
    """Return a row of a part of the time: milliseconds per step of script and job, and their ratio."""
    script, job = (
        [1e3 * epoch[f"epoch/{part}"] / epoch["epoch/steps"] for epoch in side] for side in zip(*pairs, strict=True)
    )
    ratios = [a / b for a, b in zip(script, job, strict=True)]
    return [part, f"{statistics.median(script):.3f}", f"{statistics.median(job):.3f}", *median(ratios).cells()]


def costs(tool: str, *runner: str, workers: int = 0) -> list[float]:
    """Return the ratios of measured to bare epochs, which alternate in one process.

    Args:
        tool: The script's argument.
        runner: The program that starts the script, with its arguments.
        workers: DataLoader workers of the script.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *runner, str(SCRIPTS / "lenet_script.py"), str(digits_folder()), str(TURNS), tool],
            cwd=folder, check=True, text=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(BENCHMARKS))),
                 "WORKERS": str(workers)},
        )  # fmt: skip
    took = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    by_kind: dict[bool, list[float]] = {True: [], False: []}
    for epoch in took[2:]:  # the first two are the warm-up
        by_kind[epoch["is_measured"]].append(epoch["took_s"])
    return [measured_s / bare_s for measured_s, bare_s in zip(by_kind[True], by_kind[False], strict=True)]


def waits(name: str, workers: int, steps: int, every: int) -> list[str]:
    """Return a row of a script with known waits: simulated stall, errors, and difference from the waits in its loop."""
    record, output = measured(str(SCRIPTS / "waits_script.py"), str(workers), str(steps), str(every))
    lines, windows = [json.loads(line) for line in output.splitlines()[1:]], epochs(record)
    true_s, seen_s = (statistics.median(line[key] for line in lines) for key in ("stall_s", "waited_s"))
    stall_s = statistics.median(metrics["epoch/data_stall_s"] for metrics in windows)
    part = Part(true_s, stall_s - true_s)
    errors = f"{1e3 * part.error_s:+.2f}", f"{part.error_s / true_s:+.1%}", f"{1e3 * (stall_s - seen_s):+.2f}"
    return [name, f"{1e3 * true_s:.2f}", *errors, "yes" if part.holds else "NO"]


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as locks:
        pairs = [pair for _ in range(PAIRS) for pair in compared(locks)]
    title = "Time per step of `src/measure.py` and `src/train.py`: LeNet on digits, batch 16, workers 0, one thread"
    columns: tuple[str, ...] = ("part", "script ms", "train.py ms", *(f"ratio: {column}" for column in COLUMNS))
    print_table(title, columns, [per_step(pairs, part) for part in PARTS])
    measure = str(ROOT / "src/measure.py"), "tracking=none", "sweep.again=true"
    tools = {"`src/measure.py`": ("hooks", *measure), **sized({"`Meter`": ("meter",)}, {})}
    rows = [[name, *median(costs(*arguments)).cells()] for name, arguments in tools.items()]
    rows += [["`src/measure.py`, 2 workers", *median(costs("hooks", *measure, workers=2)).cells()]]
    print_table("Epoch time of a measured script / bare, in turns within one process", ("tool", *COLUMNS), rows)
    columns = ("script", "true stall ms", "error ms", "error %", "stall - the script's own waits ms",
               "within 2 % or 2 ms")  # fmt: skip
    rows = [waits(name, *case) for name, case in sized(CASES, {"0 workers": (0, 5, 1)}).items()]
    print_table("Data stall per epoch of a script with known waits, medians of 3 epochs", columns, rows)


if __name__ == "__main__":
    main()
