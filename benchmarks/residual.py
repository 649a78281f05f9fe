"""What the two clocks disagree by: the largest residual of any epoch, over its end-to-end time, in runs made here."""

from __future__ import annotations

from jobs import trained
from rich.console import Console
from rich.table import Table

SWEEP = ["-m", "batch=16,64", "workers=0,2", "timing=deferred,synchronous", "epochs=3", "profiler=none"]


def main() -> None:
    table = Table("batch", "workers", "timing", "epochs", "largest residual / e2e", "overhead / e2e")
    for record in trained(*SWEEP, "sweep.again=true"):
        job, epochs = record.job(), [w["metrics"] for w in record.windows() if w["window"] == "epoch"]
        residual = max(abs(epoch["epoch/clock_residual_s"]) / epoch["epoch/e2e_s"] for epoch in epochs)
        overhead = max(epoch["epoch/overhead_s"] / epoch["epoch/e2e_s"] for epoch in epochs)
        cells = [str(job[key]) for key in ("batch", "workers", "timing")]
        table.add_row(*cells, str(len(epochs)), f"{residual:.6%}", f"{overhead:.3%}")
    Console().print(table)


if __name__ == "__main__":
    main()
