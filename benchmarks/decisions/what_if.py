"""What-if predictions against real changes: six jobs whose batches take a known time to fetch and to preprocess.

A stall experiment on each job, by torch's DataLoader with the timers of training, gives the predictions. Then the same
job runs with each change. Fetching, preprocessing and compute sleep, so that the machine's cores do not limit them.
"""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from common.output import print_table, sized
from pipeline import Slow, known_batch, slow_transform, spend
from sweeps import row

from epochmeter.report.analyses.what_if import epoch_s, pipeline_of
from epochmeter.report.runs.data_source import CONDITIONS
from epochmeter.report.runs.run import Run
from epochmeter.worker.clock import Clock
from epochmeter.worker.data import timed_dataset
from epochmeter.worker.data.loader import make_loader
from epochmeter.worker.strategy import Single
from epochmeter.worker.timeline import HostTimeline

STEPS, BATCH, EPOCHS, REPEATS = sized(16, 2), 4, sized(2, 1), sized(3, 1)
CLOSE = 0.05  # goal: the largest error, as a fraction of the real time


class Job(NamedTuple):
    """Seconds of a batch to fetch, to preprocess and to compute; DataLoader workers."""

    fetch_s: float
    prep_s: float
    compute_s: float
    workers: int

    def __str__(self) -> str:
        seconds = (self.fetch_s, self.prep_s, self.compute_s)
        return f"{' + '.join(f'{1e3 * part_s:.0f}' for part_s in seconds)} ms, {counted(self.workers)}"


JOBS = [
    Job(0.080, 0.080, 0.020, 1),
    Job(0.120, 0.040, 0.030, 2),
    Job(0.040, 0.120, 0.030, 4),
    Job(0.030, 0.030, 0.040, 1),
    Job(0.020, 0.020, 0.100, 1),
    Job(0.060, 0.020, 0.020, 0),
]
FASTER, WORKERS = (2.0, 10.0), (1, 2, 4)


def counted(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def measured(job: Job) -> dict[str, float]:
    """Return the mean epoch of a job, all its workers started: medians of the metrics of some epochs."""
    samples = timed_dataset.TimedDataset(
        lambda _: Slow(STEPS * BATCH, job.fetch_s / BATCH, job.prep_s / BATCH / 2),
        slow_transform(job.prep_s / BATCH / 2),
    )
    how = {"batch": BATCH, "workers": job.workers, "prefetch": 2, "persistent_workers": True, "seed": 0,
           "pin_memory": False, "drop_last": False}  # fmt: skip
    loader = make_loader(samples, how, Single(1), False)
    epochs = [_epoch(loader, job.compute_s) for _ in range(1 + EPOCHS)][1:]
    return {name: statistics.median(epoch[name] for epoch in epochs) for name in epochs[0]}


def synthetic(job: Job) -> dict[str, float]:
    """Return the same job's mean epoch on synthetic batches."""
    epochs = [_epoch([None] * STEPS, job.compute_s) for _ in range(EPOCHS)]
    return {name: statistics.median(epoch[name] for epoch in epochs) for name in epochs[0]}


def _epoch(loader: Any, compute_s: float) -> dict[str, float]:
    clock = Clock(HostTimeline())
    clock.open()
    for _ in clock.batches(loader, lambda batch: batch):
        spend(compute_s)
    clock.close()
    return {**clock.parts(), **(loader.parts(clock.rows) if hasattr(loader, "parts") else {})}


def changes(job: Job) -> dict[str, tuple[dict[str, Any], Job]]:
    """Return the changes of a job by name: the options of the prediction, and the changed job."""
    storage = {f"storage {k:g} times as fast": ({"faster": k}, job._replace(fetch_s=job.fetch_s / k)) for k in FASTER}
    workers = {counted(count): ({"workers": count}, job._replace(workers=count)) for count in WORKERS}
    return {**storage, **{name: change for name, change in workers.items() if name != counted(job.workers)}}


def compared(job: Job) -> list[list[str]]:
    """Return a line for each change of a job: predicted and real seconds per epoch.

    Each repeat takes the stall experiment (synthetic batches, nothing to fetch, storage) and all changes in turn.
    """
    rows: dict[str, list[Run]] = {name: [] for name in CONDITIONS}
    real: dict[str, list[float]] = {change: [] for change in changes(job)}
    for repeat in range(REPEATS):
        measurements = [synthetic(job), measured(job._replace(fetch_s=0.0)), measured(job)]
        for name, metrics in zip(CONDITIONS, measurements, strict=True):
            keys = {"workers": job.workers, "batch": BATCH}
            rows[name].append(row(repeat, name, metrics["e2e_s"], steady=metrics, job_keys=keys, cores=None))
        for change, (_, changed) in changes(job).items():
            real[change].append(measured(changed)["e2e_s"])
    pipeline = pipeline_of(rows)
    lines = []
    for change, (options, _) in changes(job).items():
        predicted_s, real_s = epoch_s(pipeline, **options), statistics.fmean(real[change])
        off = predicted_s / real_s - 1
        cells = [f"{seconds:.3f}" for seconds in (pipeline.cold_s, predicted_s, real_s)]
        lines.append([str(job), change, *cells, f"{100 * off:+.1f} %", "yes" if abs(off) <= CLOSE else "NO"])
    return lines


def main() -> None:
    timed_dataset.default_collate = known_batch  # torch's own takes an unknown time
    lines = [line for job in sized(JOBS, JOBS[:1]) for line in compared(job)]
    columns = ["fetch + prep + compute per batch", "change", "now s", "predicted s", "real s", "error", "within 5 %"]
    print_table(f"What-if: time per epoch of {STEPS} steps, means of {REPEATS} repeats", columns, lines)


if __name__ == "__main__":
    main()
