"""How the loader of a script spends its time, compared with known waits and known work, alone and on a busy core."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from common.jobs import measured
from common.output import print_table, sized

from epochmeter.config.installation import ROOT

SCRIPT = str(ROOT / "benchmarks/common/loads_script.py")
CASES = {
    "0 workers": ("samples", 0),
    "1 worker": ("samples", 1),
    "2 workers": ("samples", 2),
    "2 workers, `__getitems__`": ("lists", 2),
    "0 workers, `IterableDataset`": ("stream", 0),
    "2 workers, `IterableDataset`": ("stream", 2),
    "1 worker, slow transform": ("transform", 1),
    "1 worker, slow `collate_fn`": ("collate", 1),
    "2 workers, one slow": ("slow", 2),
}
"""Kind of the script, and workers."""
LIMIT_FRACTION, LIMIT_S = 0.02, 0.002
BUSY = "import time\nwhile True:\n    ends = time.perf_counter() + 0.005\n    while time.perf_counter() < ends: pass\n"
BUSY += "    time.sleep(0.005)\n"
"""A process that uses half a core."""


@contextmanager
def beside(*command: str) -> Iterator[None]:
    """Run a process meanwhile."""
    process = subprocess.Popen(command) if command else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def compared(locks: str, name: str, kind: str, workers: int) -> list[str]:
    """Return a row: true times per step and errors, by the medians of the epochs after the first, and what is named."""
    record, output = measured(f"machine.lock_dir={locks}", SCRIPT, kind, str(workers))
    truths = [json.loads(line) for line in output.splitlines()][1:]
    windows = [window for window in record.windows() if window["window"] == "epoch"][1:]
    cells, holds = [], []
    for true_key, key in (("wait_s", "loader_read_s"), ("work_s", "loader_preprocess_s")):
        if not all(f"epoch/{key}" in window["metrics"] for window in windows):
            cells += ["", "absent"]
            continue
        per_step = [window["metrics"][f"epoch/{key}"] / window["metrics"]["epoch/steps"] for window in windows]
        true_s = statistics.median(truth[true_key] for truth in truths)
        error_s = statistics.median(value - truth[true_key] for value, truth in zip(per_step, truths, strict=True))
        cells += [f"{1e3 * true_s:.2f}", f"{1e3 * error_s:+.2f} ({error_s / true_s:+.1%})"]
        holds.append(abs(error_s) <= max(LIMIT_S, LIMIT_FRACTION * true_s))
    loading = windows[-1].get("loading", {})
    named = [f"transform `{transform}`" for transform in [*loading.get("transforms", {})][:1]]
    named += [f"worker {delay['worker']}" for delay in loading.get("delays", [])[:1] if kind == "slow"]
    return [name, *cells, "yes" if all(holds) else "NO", ", ".join(named) or "-"]


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = sized(CASES, dict([*CASES.items()][:1]))
    columns = ("script", "true wait ms", "error ms", "true work ms", "error ms", "within 2 % or 2 ms", "named")
    for title, command in {"": (), ", beside a process that uses half a core": (sys.executable, "-c", BUSY)}.items():
        with beside(*command), tempfile.TemporaryDirectory() as locks:
            rows = [compared(locks, name, *case) for name, case in cases.items()]
        print_table(f"Waits and work of a script's loader per step, medians of 3 epochs{title}", columns, rows)


if __name__ == "__main__":
    main()
