"""The account of whole runs against known times: a script waits for a random time at each stage of its run.

Of further scripts (those of tests/hosts) and of configurations of `train.py`, it prints the time that the rows of the
account do not explain.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
from pathlib import Path

from common.jobs import measured, trained
from common.output import print_table, sized
from hosts.declared import HOSTS

from epochmeter.config.installation import ROOT
from epochmeter.shared.record import Record

RUNS = sized(5, 1)
SCRIPT = str(ROOT / "benchmarks/common/account_script.py")
ROWS = (
    "import_s",
    "build_s",
    "warm_up_s",
    "data_stall_s",
    "compute_s",
    "evaluation_s",
    "save_s",
    "between_s",
    "finish_s",
)
COMPUTE_S = 0.5  # at least, so that the steps after the warm-up have a known length
TOLERANCE_S, TOLERANCE = 0.1, 0.05
SCRIPTS = (
    *("plain", "max_steps-same", "folds", "trials-2", "two_loaders-even", "evaluations", "evaluation_within"),
    *("accumulation-after", "autocast", "lbfgs", "gan-batch", "checkpointed-reentrant", "no_optimizer-backward"),
    *("workers-fork", "workers-spawn", "stream-finite", "without_loader-list", "own_loader-subclass", "thread-plain"),
    "distributed-ddp",
)[: sized(20, 2)]
"""Hosts of tests/hosts, by their names."""
OF_TRAINING = ("model=lenet", "dataset=digits", "device=cpu", "epochs=3", "profiler=none")
CONFIGURATIONS = (
    (),
    ("workers=0",),
    ("workers=2", "persistent_workers=false"),
    ("evaluate=false", "batch=64"),
    ("checkpoint.every=1", "save_model=true"),
    ("profiler=torch",),
    ("cache=cold", "batch=64"),
    ("strategy=ddp", "strategy.ranks=2"),
    ("model=resnet18", "batch=64", "epochs=1", "warmup_epochs=0"),
    ("dataset.layout=memory", "epochs=1", "warmup_epochs=0"),
)[: sized(10, 2)]
"""Overrides of `train.py`."""
GOAL = 0.001
"""Largest part of a run that the rows of its account may leave out."""
COLUMNS = ("row", "known, in s", "measured - known, in ms: median", "largest", "right")


def run_of(seconds: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rows of the account of a run of the script, and those that the script has measured itself."""
    record, printed = measured(SCRIPT, json.dumps(seconds))
    summary = record.summary()
    assert summary
    rows = {row: summary["metrics"].get(f"run/{row}", 0.0) for row in (*ROWS, "residual_s", "wall_s")}
    own: dict[str, float] = {}
    for line in printed.splitlines():
        own.update(json.loads(line))
    return rows, own


def residual_of(record: Record) -> tuple[float, float]:
    """Return the time of a run that no row of its account has, and all of its time, in seconds."""
    summary = record.summary()
    assert summary
    return summary["metrics"]["run/residual_s"], summary["metrics"]["run/wall_s"]


def print_residuals() -> None:
    """Print the time that the accounts of many scripts and configurations do not explain."""
    hosts = {host.id: host for host in HOSTS}
    rows = []
    for name in SCRIPTS:
        host, folder = hosts[name], Path(tempfile.mkdtemp())
        own = {"HOST_TRUTH": str(folder / "truth.json"), "HOST_ERRORS": str(folder / "stderr"), "OMP_NUM_THREADS": "1"}
        os.environ.update(own)  # of the process that is measured
        rows.append(["script", name, *residual_of(measured(*host.keys, *host.words())[0])])
    for overrides in CONFIGURATIONS:
        (record,) = trained(*OF_TRAINING, *overrides)
        rows.append(["train.py", " ".join(overrides) or "defaults", *residual_of(record)])
    cells = [
        [kind, name, f"{wall_s:.1f}", f"{1e3 * residual_s:.3f}", f"{100 * abs(residual_s) / wall_s:.4f} %"]
        for kind, name, residual_s, wall_s in rows
    ]
    print_table("Time that the rows of an account leave out", ("run", "name", "s", "ms", "of the run"), cells)
    within = sum(abs(residual_s) <= GOAL * wall_s for *_, residual_s, wall_s in rows)
    print(f"{within} of {len(rows)} runs within {100 * GOAL:g} %.")


def main() -> None:
    noise = random.Random(0)
    idle = {**dict.fromkeys(ROWS, 0.0), "compute_s": COMPUTE_S}
    runs = []
    for _ in range(RUNS):
        base, _ = run_of(idle)
        known = {row: round(noise.uniform(0.2, 2.0), 2) + idle[row] for row in ROWS}
        rows, own = run_of(known)
        expected = {row: base[row] - idle[row] + known[row] for row in ROWS} | own
        runs.append((known, expected, rows))
    table = []
    for row in ROWS:
        errors = [rows[row] - expected[row] for _, expected, rows in runs]
        bounds = [max(TOLERANCE_S, TOLERANCE * expected[row]) for _, expected, _ in runs]
        right = sum(abs(error) <= bound for error, bound in zip(errors, bounds, strict=True))
        seconds = [known[row] for known, _, _ in runs]
        errors_ms = f"{1e3 * statistics.median(errors):.0f}", f"{1e3 * max(errors, key=abs):.0f}"
        table.append([row, f"{min(seconds):.2f} to {max(seconds):.2f}", *errors_ms, f"{right} of {RUNS}"])
    print_table("Known waits in the account of a run", COLUMNS, table)
    residual = max(abs(rows["residual_s"]) / rows["wall_s"] for *_, rows in runs)
    print(f"Largest residual: {residual:.1e} of the run.")


if __name__ == "__main__":
    main()
    print_residuals()
