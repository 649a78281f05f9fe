"""Phases of the compute of scripts by `src/measure.py`, compared with the times that the scripts take themselves."""

from __future__ import annotations

import json
import os
import statistics

from common.jobs import measured
from common.output import print_table, sized
from common.phases_script import BATCHES, EPOCHS, LOOPS

from epochmeter.config.installation import ROOT
from epochmeter.shared.phases import OTHER, PHASES
from epochmeter.shared.record import Record

SCRIPT = str(ROOT / "benchmarks/common/phases_script.py")
KNOWN = [phase for phase in PHASES if phase != OTHER]
NAMES = sized([*LOOPS], ["plain"])
TOLERANCE, TOLERANCE_MS = 0.01, 0.1  # of a phase, and per step


def per_step_ms(lines: list[dict[str, float]], phase: str, prefix: str = "") -> float:
    """Return the time of a phase per step, the median of epochs."""
    return 1e3 * statistics.median(line.get(prefix + phase, 0.0) for line in lines) / BATCHES


def row(name: str) -> list[str]:
    """Return the errors of a script's phases, and whether all are small."""
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", "benchmarks"))
    record, output = measured("sweep.again=true", SCRIPT, name)
    own = [json.loads(line) for line in output.splitlines()]
    windows = [window["metrics"] for window in record_epochs(record)]
    # A busy machine may have epochs whose phases are not known, with the reason in the record.
    epochs = [epoch for epoch in range(1, EPOCHS) if f"epoch/{OTHER}" in windows[epoch]]
    if not epochs:
        return [name, *("absent" for _ in KNOWN), "", "0", "NO"]
    own, windows = [own[epoch] for epoch in epochs], [windows[epoch] for epoch in epochs]
    errors, holds = [], True
    for phase in KNOWN:
        true_ms, found_ms = per_step_ms(own, phase), per_step_ms(windows, phase, "epoch/")
        holds &= abs(found_ms - true_ms) <= max(TOLERANCE_MS, TOLERANCE * true_ms)
        errors.append(f"{true_ms:.2f} {found_ms - true_ms:+.3f}")
    residual = max(
        abs(sum(line[f"epoch/{phase}"] for phase in PHASES) / line["epoch/compute_s"] - 1) for line in windows
    )
    return [name, *errors, f"{residual:.1e}", str(len(epochs)), "yes" if holds else "NO"]


def record_epochs(record: Record) -> list[dict]:
    """Return the epochs of a record."""
    return [window for window in record.windows() if window["window"] == "epoch"]


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    print_table(
        "Phases of compute of scripts with known times: true ms per step, and error",
        ("loop", *(phase.removesuffix("_s") for phase in KNOWN), "sum / compute - 1", "epochs",
         "within 1 % or 0.1 ms"),
        [row(name) for name in NAMES],
    )  # fmt: skip


if __name__ == "__main__":
    main()
