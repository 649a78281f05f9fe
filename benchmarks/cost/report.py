"""A report of many runs: its time, its memory and the size of its page.

`python benchmarks/cost/report.py [RUNS]` reports 10,000 (RUNS) copies of a real record with varied values.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, product
from pathlib import Path

import psutil
from common.jobs import trained
from common.output import ARGUMENTS, print_table, sized

from epochmeter.config.installation import ROOT
from epochmeter.shared.atomic_files import read_json
from epochmeter.shared.record import Record

RUNS = sized(10_000, 12)
REAL = ["model=lenet", "dataset=digits", "batch=64", "workers=0", "epochs=3", "cache=keep", "profiler=none"]
REPEATS = 3
PERIOD_S = 0.25  # period of the memory readings, in seconds


def grid(runs: int) -> Iterator[dict[str, int]]:
    """Yield the keys of `runs` runs: a grid with three repeats each, whose last axis is as long as needed."""
    points = -(-runs // REPEATS)
    limits = range(100, 100 + -(-points // 40))
    keys = ("power_limit", "batch", "workers", "repeat")
    every = product(limits, (8, 16, 32, 64, 128, 256, 512, 1024), (0, 1, 2, 4, 8), range(REPEATS))
    return (dict(zip(keys, values, strict=True)) for values in islice(every, runs))


def copies(record: Record, sweep: Path, runs: int) -> None:
    """Write `runs` records into a sweep's folder: copies of the real one with varied keys and metrics."""
    described, summary, windows = read_json(record.folder / "job.json"), record.summary(), record.windows()
    others = {name: (record.folder / name).read_bytes() for name in ("host.json", "completed.json", "steps.bin")}
    draw = random.Random(0)
    for number, keys in enumerate(grid(runs)):
        slower = 1 + 4 / keys["batch"] + 20 / keys["power_limit"] + draw.gauss(0, 0.01)
        power_w = 40 + 0.8 * keys["power_limit"] * draw.uniform(0.98, 1.02)
        folder = sweep / str(number)
        folder.mkdir(parents=True)
        run = {**described["run"], "sweep_id": sweep.name, "number": number, "record_id": f"{sweep.name}-{number}"}
        run["overrides"] = [f"{key}={value}" for key, value in keys.items()]
        run["energy"] = {"source": "counter", "covers": "GPUs used", "reason": None}
        dump(folder / "job.json", {**described, "job": {**described["job"], **keys}, "run": run})
        dump(folder / "summary.json", {**summary, "metrics": varied(summary["metrics"], slower, power_w)})
        lines = [json.dumps({**window, "metrics": varied(window["metrics"], slower, power_w)}) for window in windows]
        (folder / "epochs.jsonl").write_text("".join(f"{line}\n" for line in lines))
        for name, content in others.items():
            (folder / name).write_bytes(content)


def varied(metrics: dict[str, float], slower: float, power_w: float) -> dict[str, float]:
    """Return the metrics of a run that is `slower` times as long, at this power."""
    times = {name: value * slower if name.endswith("_s") else value for name, value in metrics.items()}
    energy = {name.replace("e2e_s", "energy_j"): value * power_w for name, value in times.items() if "e2e_s" in name}
    return {**times, **energy}


def wait_for_peak(pid: int) -> int:
    """Wait for a process and return the peak memory of it and its children in bytes; shared memory counts once."""
    peak_bytes = 0
    process = psutil.Process(pid)
    while process.status() != psutil.STATUS_ZOMBIE:
        now_bytes = 0
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # it has just ended
                now_bytes += member.memory_full_info().pss
        peak_bytes = max(peak_bytes, now_bytes)
        time.sleep(PERIOD_S)
    return peak_bytes


def dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))


def main() -> None:
    runs = int(ARGUMENTS[0]) if ARGUMENTS else RUNS
    (record,) = trained(*REAL)
    with tempfile.TemporaryDirectory() as made:
        sweep = Path(made) / "2026-01-01_00-00-00-10000000"
        copies(record, sweep, runs)
        begun = time.monotonic()
        command = [sys.executable, "src/report.py", f"sweep={sweep}", "tracking=none"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        peak_bytes = wait_for_peak(process.pid)
        _, ended, used = os.wait4(process.pid, 0)
        took_s = time.monotonic() - begun
        if ended:
            sys.exit("the report failed: see above")
        files = {path.suffix: path.stat().st_size for path in sweep.glob("report.*")}
    sizes = [f"{files[suffix] / 1e6:.1f}" if suffix in files else "-" for suffix in (".html", ".csv")]
    row = [f"{runs:,}", f"{took_s:.1f}", f"{used.ru_utime + used.ru_stime:.1f}", f"{peak_bytes / 1e6:.0f}", *sizes]
    print_table("A report of many runs", ("runs", "s", "CPU s", "peak MB", "page MB", "CSV MB"), [row])


if __name__ == "__main__":
    main()
