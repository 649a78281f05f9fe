"""Ground truth of stalls: samples that take a known time to read and to preprocess, a step that computes a known time.

Each row is one kind of epoch, measured by the worker's own clock and loader; what it should have found comes from an
exact simulation of torch's loader, in which torch makes a batch in the time that it takes by itself. Loader processes
are there already: the second epoch and later ones count.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from pipeline import Slow, Truth, batching_s, slow_transform, spend, truth
from rich.console import Console
from rich.table import Table

from trainmeter.worker.clock import Clock
from trainmeter.worker.data.loader import train_loader
from trainmeter.worker.data.timing import Timed
from trainmeter.worker.strategy import Single
from trainmeter.worker.timeline import HostTimeline

STEPS, BATCH, PREFETCH, EPOCHS = 20, 4, 2, 3
NEAR, NEAR_S = 0.02, 0.002
"""How far off may be: a share of the truth, or seconds of a step."""


class Cell(NamedTuple):
    """A kind of epoch: what a batch takes to read and to preprocess, and its step to compute."""

    name: str
    read_s: float
    preprocess_s: float
    compute_s: float
    batching_s: float

    def truth(self, workers: int) -> Truth:
        preprocess_s = self.preprocess_s + self.batching_s
        return truth(STEPS, self.read_s, preprocess_s, self.compute_s, workers, PREFETCH)


CELLS = {
    "hidden": (0.008, 0.008, 0.040),
    "balanced": (0.020, 0.020, 0.040),
    "balanced on 2": (0.040, 0.040, 0.040),
    "exposed (read)": (0.080, 0.020, 0.020),
    "exposed (prep)": (0.020, 0.080, 0.020),
}


def measured(cell: Cell, workers: int, epochs: int = EPOCHS) -> list[dict[str, float]]:
    """What the worker's clock and loader say of each epoch but the first."""
    read_s, preprocess_s = cell.read_s / BATCH, cell.preprocess_s / BATCH
    samples = Timed(lambda _: Slow(STEPS * BATCH, read_s, preprocess_s / 2), slow_transform(preprocess_s / 2))
    job = {"batch": BATCH, "workers": workers, "prefetch": PREFETCH, "persistent_workers": True, "seed": 0,
           "pin_memory": False, "drop_last": False}  # fmt: skip
    loader, clock = train_loader(samples, job, Single(1), False), Clock(HostTimeline())
    told = []
    for _ in range(1 + epochs):
        clock.open()
        for _ in clock.batches(loader, lambda batch: batch):
            spend(cell.compute_s)
        clock.close()
        told.append({**clock.parts(), **loader.parts(clock.rows)})
    return told[1:]


def error(cell: Cell, workers: int, found: Mapping[str, float]) -> dict[str, float]:
    """By how much each part misses its truth, in seconds of a step."""
    known = cell.truth(workers)
    parts = {"fetch_stall_s": known.stall_s, "loader_read_s": known.read_s, "loader_preprocess_s": known.preprocess_s}
    return {name: (found[name] - expected) / STEPS for name, expected in parts.items()}


def holds(cell: Cell, workers: int, name: str, error_s: float) -> bool:
    """Whether a part's error is within 2 % of its truth, or within 2 ms of a step."""
    known = cell.truth(workers)
    expected = {"fetch_stall_s": known.stall_s, "loader_read_s": known.read_s}.get(name, known.preprocess_s)
    return abs(error_s) <= max(NEAR_S, NEAR * expected / STEPS)


def main() -> None:
    table = Table(
        "epoch", "workers", "stall ms", "error", "%", "read ms", "error", "%", "prep ms", "error", "%", "held"
    )
    for name, known_s in CELLS.items():
        cell = Cell(name, *known_s, batching_s(BATCH, known_s[1] / BATCH / 2))
        for workers in (0, 1, 2):
            errors = [error(cell, workers, found) for found in measured(cell, workers)]
            middle = {name: statistics.median(one[name] for one in errors) for name in errors[0]}
            known = cell.truth(workers)
            cells = []
            for total_s, off_s in zip((known.stall_s, known.read_s, known.preprocess_s), middle.values(), strict=True):
                share = f"{off_s * STEPS / total_s:+.1%}" if total_s else "-"
                cells += [f"{total_s / STEPS * 1e3:.2f}", f"{off_s * 1e3:+.2f}", share]
            held = all(holds(cell, workers, name, off_s) for name, off_s in middle.items())
            table.add_row(cell.name, str(workers), *cells, "yes" if held else "NO")
    console = Console(width=140)
    console.print(
        f"Milliseconds of a step, in truth, and by how much what is measured is off; median of {EPOCHS} epochs of "
        f"{STEPS} steps, batches of {BATCH}."
    )
    console.print(table)


if __name__ == "__main__":
    main()
