"""Kill a measured script, its controller or both at random instants, and compare the record with the script's count.

    python benchmarks/robustness/script_kills.py --each 25

Each column except `injected` and `after a kill` must be 0.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from common.output import ARGUMENTS, print_table, sized
from project import ENVIRONMENT, ROOT

from epochmeter.run.orphans import close_orphans
from epochmeter.shared.record import Record

EPOCHS, STEPS = 30, 8
MOST_S = 1.2  # latest kill after the first step; the script trains for twice as long
LIMIT_S = 120
SCRIPT = f"""
import os, random, sys, time
import torch
from torch.utils.data import DataLoader

counts = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
exits_after_s = float(sys.argv[2])
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
os.write(counts, str(os.getpid()).encode() + b"\\n")
begun_s = time.monotonic()
for epoch in range({EPOCHS}):
    for batch in DataLoader(torch.ones({STEPS * 4}, 4), 4):
        model(batch).sum().backward()
        optimizer.step()
        os.write(counts, b".")
        if time.monotonic() - begun_s > exits_after_s:
            os._exit(0)
        time.sleep(0.01)
"""


class Losses(NamedTuple):
    """Differences between a record and the script's own count of its steps."""

    after_kill: int  # epochs that the script has begun after the kill of its controller
    lost: int  # steps
    doubled: int  # steps, or numbers of epochs
    open_runs: int  # records without an end
    logs: int  # folders of logs that are left


def kill(*names: str) -> Callable[[dict[str, int]], None]:
    def act(pids: dict[str, int]) -> None:
        for name in names:
            with suppress(ProcessLookupError):
                os.kill(pids[name], signal.SIGKILL)

    return act


KILLS = {
    "SIGKILL of the controller": kill("controller"),
    "SIGKILL of the script": kill("script"),
    "SIGKILL of both": kill("controller", "script"),
    "SIGKILL of the controller, os._exit of the script": kill("controller"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=sized(25, 1), help="how often each is injected (%(default)s)")
    options = parser.parse_args(ARGUMENTS)
    rows, failed = [], False
    for name in KILLS:
        losses = [inject(name, seed) for seed in range(options.each)]
        sums = [sum(column) for column in zip(*losses, strict=True)]
        rows.append([name, str(options.each), *map(str, sums)])
        failed |= any(sums[1:])
    columns = ("injected", "epochs after a kill", "lost steps", "doubled", "not closed", "logs left")
    print_table("Losses of killed scripts and controllers", ("kill", *columns), rows)
    return int(failed)


def inject(name: str, seed: int) -> Losses:
    """Kill at a random instant, wait for the end of the script, and close its run as the next command does."""
    generator = random.Random(f"{name} {seed}")
    delay_s = generator.uniform(0, MOST_S)
    exits_after_s = generator.uniform(0, 2 * MOST_S) if "os._exit" in name else 1e9
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "own.py").write_text(SCRIPT)
        counts, run = root / "counts", root / "multirun/sweep/0"
        keys = [f"machine.lock_dir={root}", "tracking=none", f"hydra.run.dir={run}"]
        command = [sys.executable, str(ROOT / "src/measure.py"), *keys, "own.py", str(counts), str(exits_after_s)]
        output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        controller = subprocess.Popen(command, cwd=root, env=ENVIRONMENT, **output)
        until(lambda: counts.exists() and b"\n" in counts.read_bytes())
        script = int(counts.read_bytes().partition(b"\n")[0])
        time.sleep(delay_s)
        KILLS[name]({"controller": controller.pid, "script": script})
        at_kill = len(steps_of(counts))
        controller.wait()
        until(lambda: not os.path.exists(f"/proc/{script}"))
        close_orphans(root / "multirun", print)
        record, steps = Record(run), len(steps_of(counts))
        windows = record.windows()
        recorded = sum(int(window["metrics"]["epoch/steps"]) for window in windows)
        return Losses(
            after_kill=(steps - at_kill) // STEPS,
            lost=max(0, steps - recorded),
            doubled=max(0, recorded - steps - 1) + len(windows) - len({window["epoch"] for window in windows}),
            open_runs=int(record.summary() is None),
            logs=len([*Path("/dev/shm").glob(f"epochmeter-events-{record.run()['record_id']}")]),
        )


def steps_of(counts: Path) -> bytes:
    return counts.read_bytes().partition(b"\n")[2]


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {LIMIT_S} s"
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
