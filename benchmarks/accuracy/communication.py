"""Exposed communication of two gloo ranks, compared with known waits.

The second rank sleeps longer in each step, by 3, 9 or 15 ms in turn, and the first one waits for it. With
DistributedDataParallel, the wait is known by these sleeps. If the script itself calls `torch.distributed`, it is the
time of these calls by the script's clock. The goal is an error within 2 % or 2 ms per step.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path

from common import ranks_script
from common.jobs import measured
from common.output import print_table, sized

from epochmeter.config.installation import ROOT

SCRIPT = str(ROOT / "benchmarks/common/ranks_script.py")
KINDS = {
    "gradients": "DistributedDataParallel",
    "buffers": "DistributedDataParallel with buffers",
    "own loop": "DistributedDataParallel, in the loop of `train.py`",
    "all_reduce": "all_reduce per gradient",
    "async": "all_reduce(async_op=True), then wait",
    "barrier": "barrier",
}
EPOCHS = sized(6, 3)
CLOSE, CLOSE_MS = 0.02, 2.0


def errors_ms(kind: str) -> list[tuple[float, float]]:
    """Return the known wait of the first rank per step and the error of the measured one, without the first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = ["torchrun", "--standalone", "--nproc_per_node=2", SCRIPT, kind, str(EPOCHS), folder]
        record, _ = measured("tracking=none", "sweep.again=true", "sweep.wait_idle=0", *launcher)
        first, second = (json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2))
    windows = [window for window in record.windows() if window["window"] == "epoch"]
    pairs = []
    for window, of_first, of_second in zip(windows[1:], first[1:], second[1:], strict=True):
        ranks = window["of_ranks"]
        if kind in ranks_script.BY_CLOCK:
            known_s, found_s = of_first["clock_s"], ranks[0]["communication_s"]
        else:
            known_s, found_s = of_second["extra_s"] - of_first["extra_s"], ranks[0]["rank_wait_s"]
            if kind == "own loop":
                found_s = of_first["own_s"] - of_second["own_s"]
        pairs.append((1e3 * known_s / of_first["steps"], 1e3 * (found_s - known_s) / of_first["steps"]))
    return pairs


def row(kind: str) -> list[str]:
    pairs = errors_ms(kind)
    known_ms = statistics.median(known for known, _ in pairs)
    errors = [error for _, error in pairs]
    worst = max(errors, key=abs)
    holds = all(abs(error) <= max(CLOSE_MS, CLOSE * known) for known, error in pairs)
    return [
        KINDS[kind],
        f"{known_ms:.2f}",
        f"{statistics.median(errors):+.3f}",
        f"{worst:+.3f}",
        "yes" if holds else "NO",
    ]


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", "benchmarks"))
    print_table(
        "Exposed communication of two gloo ranks with known waits",
        ("exchange", "known ms per step", "median error", "largest error", "within 2 % or 2 ms"),
        [row(kind) for kind in sized([*KINDS], [*KINDS][:2])],
    )


if __name__ == "__main__":
    main()
