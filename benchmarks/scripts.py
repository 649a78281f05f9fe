"""What `src/measure.py` measures in a script, compared with `src/train.py` on the same job and with known waits."""

from __future__ import annotations

import json
import os
import statistics

from jobs import digits_folder, measured, trained
from output import print_table, sized
from pairs import COLUMNS, ratio
from stalls import Part

from epochmeter.config.job import ROOT
from epochmeter.shared.record import Record

WITHIN, MOST, EPOCHS = 0.004, 40, sized(8, 2)
SCRIPTS = ROOT / "benchmarks"
JOB = ["model=lenet", "dataset=digits", "batch=16", "workers=0", "evaluate=false", "optimizer.momentum=0.9"]
JOB += ["profiler=none", "roofline.peaks=none", "cache=keep", f"epochs={EPOCHS}"]
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


def e2e_s(record: Record) -> float:
    return statistics.median(metrics["epoch/e2e_s"] for metrics in epochs(record))


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    lenet = [str(SCRIPTS / "lenet_script.py"), str(digits_folder()), str(EPOCHS), "none"]
    result = ratio(lambda: e2e_s(measured(*lenet)[0]), lambda: e2e_s(trained(*JOB)[0]), WITHIN, MOST)
    title = "End to end time of an epoch, `src/measure.py` / `src/train.py`: LeNet on digits, batch 16, workers 0"
    print_table(title, COLUMNS, [result.cells()])
    rows = []
    for name, (workers, steps, every) in sized(CASES, {"0 workers": (0, 5, 1)}).items():
        record, output = measured(str(SCRIPTS / "waits_script.py"), str(workers), str(steps), str(every))
        pairs = list(zip(map(json.loads, output.splitlines()[1:]), epochs(record), strict=True))
        true_s, stall_s = (statistics.median(values) for values in zip(
            *((true_s, metrics["epoch/data_stall_s"]) for true_s, metrics in pairs), strict=True))  # fmt: skip
        residual = max(abs(metrics["epoch/clock_residual_s"]) / metrics["epoch/e2e_s"] for _, metrics in pairs)
        part = Part(true_s, stall_s - true_s)
        cells = f"{1e3 * true_s:.2f}", f"{1e3 * part.error_s:+.2f}", f"{part.error_s / true_s:+.1%}", f"{residual:.4%}"
        rows.append([name, *cells, "yes" if part.holds else "NO"])
    columns = ("script", "true stall ms", "error ms", "error %", "largest clock residual / e2e", "within 2 % or 2 ms")
    print_table("Data stall per epoch of a script with known waits, medians of 3 epochs", columns, rows)


if __name__ == "__main__":
    main()
