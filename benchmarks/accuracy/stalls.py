"""Ground truth of stalls: samples that take a known time to read and to preprocess, a step that computes a known time.

Each row is one kind of epoch, measured by the training process's clock and loader. The true stall is the time between
the end of a step and the next batch, by a clock of the training loop; the true times of a batch are those that its
samples took. So neither other load nor the start of torch's loader is an error. DataLoader workers are running already:
the second epoch and later ones count.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from common.output import print_table, sized
from pipeline import Slow, Took, known_batch, slow_transform, spend

from epochmeter.worker.clock import Clock
from epochmeter.worker.data import timed_dataset
from epochmeter.worker.data.loader import make_loader
from epochmeter.worker.strategy import Single
from epochmeter.worker.timeline import HostTimeline

STEPS, BATCH, PREFETCH, EPOCHS = sized(20, 2), 4, 2, sized(5, 1)
NEAR, NEAR_S = 0.02, 0.002  # largest error: as a fraction of the truth, or in seconds per step
CELLS = {
    "hidden": (0.008, 0.008, 0.040),
    "balanced": (0.020, 0.020, 0.040),
    "balanced on 2": (0.040, 0.040, 0.040),
    "exposed (read)": (0.080, 0.020, 0.020),
    "exposed (prep)": (0.020, 0.080, 0.020),
}
"""Seconds per batch to read and to preprocess, and per step to compute."""


class Part(NamedTuple):
    """A part of an epoch: its true time and the error of the measured time, in seconds per step."""

    true_s: float
    error_s: float

    @property
    def holds(self) -> bool:
        return abs(self.error_s) <= max(NEAR_S, NEAR * self.true_s)


def measured(read_s: float, preprocess_s: float, compute_s: float, workers: int) -> list[tuple[Part, ...]]:
    """Return stall, reading and preprocessing of each epoch except the first."""
    samples = timed_dataset.TimedDataset(
        lambda _: Slow(STEPS * BATCH, read_s / BATCH, preprocess_s / BATCH / 2),
        slow_transform(preprocess_s / BATCH / 2),
    )
    job = {"batch": BATCH, "workers": workers, "prefetch": PREFETCH, "persistent_workers": True, "seed": 0,
           "pin_memory": False, "drop_last": False}  # fmt: skip
    loader, clock = make_loader(samples, job, Single(1), False), Clock(HostTimeline())
    epochs = []
    for _ in range(1 + EPOCHS):
        took, stall_s = [], 0.0
        clock.open()
        ended = time.perf_counter()
        for batch in clock.batches(loader, lambda batch: batch):
            stall_s += time.perf_counter() - ended
            took.append(batch)
            spend(compute_s)
            ended = time.perf_counter()
        clock.close()
        epochs.append(parts(stall_s, took, {**clock.parts(), **loader.parts(clock.rows)}))
    return epochs[1:]


def parts(stall_s: float, took: list[Took], metrics: dict[str, float]) -> tuple[Part, ...]:
    pairs = (
        (stall_s, metrics["data_stall_s"]),
        (sum(batch.read_s for batch in took), metrics["loader_read_s"]),
        (sum(batch.preprocess_s for batch in took), metrics["loader_preprocess_s"]),
    )
    return tuple(Part(true_s / STEPS, (measured_s - true_s) / STEPS) for true_s, measured_s in pairs)


def main() -> None:
    timed_dataset.default_collate = known_batch  # torch's own takes an unknown time
    columns = [f"{part} {what}" for part in ("stall", "read", "prep") for what in ("ms", "error ms", "error %")]
    rows = []
    for name, seconds in CELLS.items():
        for workers in (0, 1, 2):
            middle = [
                Part(*(statistics.median(values) for values in zip(*epochs, strict=True)))
                for epochs in zip(*measured(*seconds, workers), strict=True)
            ]
            cells = [
                cell
                for part in middle
                for cell in (
                    f"{1e3 * part.true_s:.2f}",
                    f"{1e3 * part.error_s:+.2f}",
                    f"{part.error_s / part.true_s:+.1%}",
                )
            ]
            rows.append([name, str(workers), *cells, "yes" if all(part.holds for part in middle) else "NO"])
    print_table(
        f"Stalls: the truth per step, and the error of the measurement; medians of {EPOCHS} epochs of {STEPS} steps, "
        f"batches of {BATCH}",
        ("epoch", "workers", *columns, "within 2 % or 2 ms"),
        rows,
    )


if __name__ == "__main__":
    main()
