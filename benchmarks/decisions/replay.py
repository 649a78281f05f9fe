"""Replayed scripts against the same scripts with their data in memory, and what-if predictions for scripts.

Replay predicts the time per epoch without data stalls. The real removal has all batches in memory. The scripts of the
what-if only sleep, so that the machine's cores do not limit them. The arguments `deliveries`, `replay` and `what-if`
choose tables.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import Any, NamedTuple

import torch
from common import stalled_script
from common.jobs import measured
from common.output import ARGUMENTS, print_table, sized
from common.pairs import COLUMNS, median

from epochmeter.agent.kept_batches import KeptBatch
from epochmeter.config.installation import ROOT
from epochmeter.report.analyses.what_if import epoch_s, pipeline_of
from epochmeter.report.runs.data_source import FROM_CACHE, FROM_STORAGE, SYNTHETIC
from epochmeter.report.runs.from_record import run_of
from epochmeter.report.runs.run import Run
from epochmeter.results.run_folder import RunFolder
from epochmeter.shared.record import WORKER_LOG

SCRIPT = str(ROOT / "benchmarks/common/stalled_script.py")
PAIRS, EPOCHS = sized(20, 2), sized(5, 3)
"""Pairs of epochs of each script, and epochs of each run of the what-if, with the warm-up."""
KINDS = (
    *("images", "images, evaluation", "images, accumulation", "stream"),
    *("changed in place", "dictionaries", "PIL images", "packed sequences"),
)
LOAD_S, COMPUTE_S = 0.03, 0.03  # of a batch of these scripts; the model computes in addition
REPLAY = ["data_source=replay", "measure.replay_precision=0.00001"]  # all epochs
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


def run(kind: str, epochs: int, workers: int, load_s: float, compute_s: float, *keys: str, pairs: bool = False) -> Run:
    """Return the measured run of a script."""
    arguments = [kind, *map(str, (epochs, workers, load_s, compute_s)), *(["pairs"] if pairs else [])]
    record, _ = measured("tracking=none", "sweep.again=true", *keys, SCRIPT, *arguments)
    return run_of(RunFolder(record.folder))


def removed(kind: str) -> list[str]:
    """Return a row of a script: its first epoch, which loads all batches; replayed; in memory; and their ratio."""
    replayed = run(kind, PAIRS + 2, 0, LOAD_S, COMPUTE_S, *REPLAY, pairs=True)
    lines = (replayed.record.folder / WORKER_LOG).read_text().splitlines()
    (loaded_s, _), _, *pairs = (json.loads(line) for line in lines if line.startswith("["))
    ratio = median([a / b for a, b in pairs])
    times = [loaded_s, *(statistics.median(side) for side in zip(*pairs, strict=True))]
    is_close = abs(ratio.median - 1) <= CLOSE_REPLAY
    return [kind, *(f"{seconds:.3f}" for seconds in times), *ratio.cells(), "yes" if is_close else "NO"]


def changes(job: Job) -> dict[str, tuple[dict[str, Any], Job]]:
    """Return the changes of a job by name: the options of the prediction, and the changed job."""
    counts = [count for count in (1, 2, 4) if count != job.workers]
    return {
        **{f"workers {count}": ({"workers": count}, job._replace(workers=count)) for count in counts},
        **{f"storage {k:g} times as fast": ({"faster": k}, job._replace(fetch_s=job.fetch_s / k)) for k in (2.0, 10.0)},
        "cached": ({"cached": 1.0}, job._replace(fetch_s=0.0)),
        "preprocessing in advance": ({"prepared": 1.0}, job._replace(prep_s=0.0)),
    }


def real_s(job: Job) -> float:
    """Return the mean time per epoch of a script with this job, by its own clock."""
    training = stalled_script.Training("images", job.compute_s)
    loader = stalled_script.make_loader("images", job.workers, job.fetch_s + job.prep_s)
    return statistics.fmean([training.epoch_s(loader) for _ in range(EPOCHS)][1:])


def predicted(job: Job) -> list[list[str]]:
    """Return a row for each change of a script: predicted and real seconds per epoch."""
    keys = {SYNTHETIC: REPLAY, FROM_CACHE: [], FROM_STORAGE: []}
    loads_s = {name: job.prep_s + (0.0 if name == FROM_CACHE else job.fetch_s) for name in keys}
    rows = {
        name: [run("images", EPOCHS, job.workers, loads_s[name], job.compute_s, *options)]
        for name, options in keys.items()
    }
    pipeline = pipeline_of(rows)
    assert pipeline
    lines = []
    for change, (options, changed) in changes(job).items():
        predicted_s, measured_s = epoch_s(pipeline, **options), real_s(changed)
        off = predicted_s / measured_s - 1
        cells = [f"{seconds:.3f}" for seconds in (pipeline.cold_s, predicted_s, measured_s)]
        lines.append([str(job), change, *cells, f"{100 * off:+.1f} %", "yes" if abs(off) <= CLOSE else "NO"])
    return lines


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests"))
    if not ARGUMENTS or "deliveries" in ARGUMENTS:
        rows = [delivered(kind) for kind in KINDS]
        print_table("Deliveries of a kept batch, medians", ["script", "unchanged us", "changed in place us"], rows)
    if not ARGUMENTS or "replay" in ARGUMENTS:
        rows = [removed(kind) for kind in sized(KINDS, KINDS[:1])]
        columns = ["script", "loaded s", "replayed s", "in memory s", *COLUMNS, "within 4 %"]
        print_table("Replay: time per epoch of 16 steps, replayed / in memory, in turns", columns, rows)
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
        print_table(f"What-if for scripts: time per epoch of 16 steps, means of {EPOCHS - 1} epochs", columns, lines)


if __name__ == "__main__":
    main()
