"""Replayed scripts against the same scripts with their data in memory, and what-if predictions for scripts.

Replay predicts the time per epoch without data stalls. The real removal has all batches in memory. The scripts of the
what-if only sleep, so that the machine's cores do not limit them. The arguments `deliveries`, `replay` and `what-if`
choose tables.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, NamedTuple

import torch
from common import stalled_script
from common.jobs import measured
from common.output import ARGUMENTS, print_table, sized

from epochmeter.agent.kept_batches import KeptBatch
from epochmeter.config.installation import ROOT
from epochmeter.report.analyses.what_if import epoch_s, pipeline_of
from epochmeter.report.runs.data_source import CONDITIONS
from epochmeter.report.runs.from_record import run_of
from epochmeter.report.runs.run import Run
from epochmeter.results.intervals import half_width
from epochmeter.results.run_folder import RunFolder

SCRIPT = str(ROOT / "benchmarks/common/stalled_script.py")
PAIRS, EPOCHS = sized(3, 1), sized(8, 3)
"""Pairs of runs of each script, and epochs of each run, with the warm-up."""
REPEATS, EPOCHS_OF_CHANGE = 1, sized(4, 3)
KINDS = (
    *("images", "images, evaluation", "images, accumulation", "stream"),
    *("changed in place", "dictionaries", "PIL images", "packed sequences"),
)
LOAD_S, COMPUTE_S = 0.03, 0.03  # of a batch of these scripts; the model computes in addition
REPLAY = ["data_source=replay", "measure.replay_precision=0.0001"]  # all epochs
CLOSE_REPLAY, CLOSE = 0.04, 0.05  # goals: the largest errors, as fractions of the real times


class Job(NamedTuple):
    """Seconds of a batch to fetch, to preprocess and to compute; DataLoader workers."""

    fetch_s: float
    prep_s: float
    compute_s: float
    workers: int

    def __str__(self) -> str:
        parts_s = (self.fetch_s, self.prep_s, self.compute_s)
        return f"{' + '.join(f'{1e3 * part_s:.0f}' for part_s in parts_s)} ms, workers {self.workers}"


JOBS = [Job(0.04, 0.04, 0.02, 0), Job(0.04, 0.04, 0.02, 1), Job(0.06, 0.02, 0.03, 2), Job(0.03, 0.03, 0.04, 1)]


def delivered(kind: str) -> list[str]:
    """Return a row of a script: time to deliver a kept batch, whose tensors were unchanged or changed in place."""
    kept = KeptBatch(stalled_script.KINDS[kind][0](0))

    def changed() -> float:
        for number in range(len(kept._tensors)):
            torch.autograd.graph.increment_version(kept._tensor(number))
        return taken_s()

    def taken_s() -> float:
        begun = time.perf_counter()
        kept.deliver()
        return time.perf_counter() - begun

    counts = range(sized(2000, 10))
    return [kind, *(f"{1e6 * statistics.median(function() for _ in counts):.0f}" for function in (taken_s, changed))]


def run(kind: str, job: Job, epochs: int, *keys: str, memory: bool = False) -> Run:
    """Return the measured run of a script."""
    times_s = map(str, (job.fetch_s, job.prep_s, job.compute_s))
    arguments = [kind, str(epochs), str(job.workers), *times_s, *(["memory"] if memory else [])]
    record, _ = measured("sweep.again=true", *keys, SCRIPT, *arguments)
    return run_of(RunFolder(record.folder))


def median_s(measurement: Run) -> float:
    """Return the median time of the epochs after the warm-up."""
    return statistics.median(epoch["epoch/e2e_s"] for epoch in measurement.epochs.values())


def removed(kind: str) -> list[str]:
    """Return a row of a script: as it is, replayed, in memory, and the error of replay with its interval."""
    job = Job(LOAD_S, 0.0, COMPUTE_S, 0)
    as_it_is_s = median_s(run(kind, job, sized(4, 3)))
    replayed, real = [], []
    for pair in range(PAIRS):
        for is_real in (False, True) if pair % 2 else (True, False):
            if is_real:
                real.append(median_s(run(kind, job, EPOCHS, memory=True)))
            else:
                replayed.append(median_s(run(kind, job, EPOCHS, *REPLAY)))
    errors = [a / b - 1 for a, b in zip(replayed, real, strict=True)]
    error, half = statistics.fmean(errors), half_width(errors) if PAIRS > 1 else float("nan")
    times = [f"{seconds:.3f}" for seconds in (as_it_is_s, statistics.median(replayed), statistics.median(real))]
    return [kind, *times, f"{100 * error:+.1f} ± {100 * half:.1f} %", "yes" if abs(error) <= CLOSE_REPLAY else "NO"]


def changes(job: Job) -> dict[str, tuple[dict[str, Any], Job]]:
    """Return the changes of a job by name: the options of the prediction, and the changed job."""
    counts = [count for count in (1, 2, 4) if count != job.workers]
    return {
        **{f"workers {count}": ({"workers": count}, job._replace(workers=count)) for count in counts},
        **{f"storage {k:g} times as fast": ({"faster": k}, job._replace(fetch_s=job.fetch_s / k)) for k in (2.0, 10.0)},
        "cached": ({"cached": 1.0}, job._replace(fetch_s=0.0)),
        "preprocessing in advance": ({"prepared": 1.0}, job._replace(prep_s=0.0)),
    }


def predicted(job: Job) -> list[list[str]]:
    """Return a row for each change of a script: predicted and real seconds per epoch."""
    rows: dict[str, list[Run]] = {name: [] for name in CONDITIONS}
    real: dict[str, list[float]] = {change: [] for change in changes(job)}
    for _ in range(REPEATS):
        replayed = run("images", job, EPOCHS_OF_CHANGE, *REPLAY)
        cached = run("images", job._replace(fetch_s=0.0), EPOCHS_OF_CHANGE)
        for name, of_source in zip(CONDITIONS, (replayed, cached, run("images", job, EPOCHS_OF_CHANGE)), strict=True):
            rows[name].append(of_source)
        for change, (_, changed) in changes(job).items():
            real[change].append(run("images", changed, EPOCHS_OF_CHANGE).metrics["steady/e2e_s"])
    pipeline = pipeline_of(rows)
    assert pipeline
    lines = []
    for change, (options, _) in changes(job).items():
        predicted_s, real_s = epoch_s(pipeline, **options), statistics.fmean(real[change])
        off = predicted_s / real_s - 1
        cells = [f"{seconds:.3f}" for seconds in (pipeline.cold_s, predicted_s, real_s)]
        lines.append([str(job), change, *cells, f"{100 * off:+.1f} %", "yes" if abs(off) <= CLOSE else "NO"])
    return lines


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests"))
    if not ARGUMENTS or "deliveries" in ARGUMENTS:
        rows = [delivered(kind) for kind in KINDS]
        print_table("Deliveries of a kept batch, medians", ["script", "unchanged us", "changed in place us"], rows)
    if not ARGUMENTS or "replay" in ARGUMENTS:
        rows = [removed(kind) for kind in sized(KINDS, KINDS[:1])]
        columns = ["script", "as it is s", "replayed s", "in memory s", "error", "within 4 %"]
        print_table(f"Replay: median time per epoch of 16 steps, {PAIRS} pairs of runs", columns, rows)
    if not ARGUMENTS or "what-if" in ARGUMENTS:
        lines = [line for job in sized(JOBS, JOBS[:1]) for line in predicted(job)]
        columns = [
            "fetch + prep + compute per batch",
            "change",
            "now s",
            "predicted s",
            "real s",
            "error",
            "within 5 %",
        ]
        print_table("What-if for scripts: mean time per epoch of 16 steps", columns, lines)


if __name__ == "__main__":
    main()
