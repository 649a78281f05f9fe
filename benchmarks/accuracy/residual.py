"""Difference of the two clocks: the largest residual of any epoch, over its end-to-end time, in runs made here."""

from __future__ import annotations

from common.jobs import trained
from common.output import print_table, sized

SWEEP = ["-m", "batch=16,64", "workers=0,2", "timing=deferred,synchronous", "epochs=3", "profiler=none"]
SHORT_SWEEP = ["-m", "batch=64", "workers=0", "timing=synchronous", "epochs=1", "profiler=none"]
COLUMNS = ("batch", "workers", "timing", "epochs", "largest residual / e2e", "largest overhead / e2e")


def main() -> None:
    rows = []
    for record in trained(*sized(SWEEP, SHORT_SWEEP), "sweep.again=true"):
        job, epochs = record.job(), [w["metrics"] for w in record.windows() if w["window"] == "epoch"]
        residual = max(abs(epoch["epoch/clock_residual_s"]) / epoch["epoch/e2e_s"] for epoch in epochs)
        overhead = max(epoch["epoch/overhead_s"] / epoch["epoch/e2e_s"] for epoch in epochs)
        cells = [str(job[key]) for key in ("batch", "workers", "timing")]
        rows.append([*cells, str(len(epochs)), f"{residual:.4%}", f"{overhead:.2%}"])
    print_table("Disagreement of the two clocks, the largest of any epoch", COLUMNS, rows)


if __name__ == "__main__":
    main()
