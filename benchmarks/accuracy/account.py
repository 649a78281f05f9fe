"""The account of whole runs against known times: a script waits for a random time at each stage of its run."""

from __future__ import annotations

import json
import random
import statistics

from common.jobs import measured
from common.output import print_table, sized

from epochmeter.config.installation import ROOT

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
COLUMNS = ("row", "known, in s", "measured - known, in ms: median", "largest", "right")


def run_of(seconds: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rows of the account of a run of the script, and those that the script has measured itself."""
    record, printed = measured(SCRIPT, json.dumps(seconds))
    summary = record.summary()
    assert summary
    rows = {row: summary["metrics"].get(f"run/{row}", 0.0) for row in (*ROWS, "residual_s", "wall_s")}
    return rows, json.loads(printed)


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
