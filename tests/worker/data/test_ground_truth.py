"""Pipelines with known times, compared with the measurements of clock and loader."""

import time

import pytest
from pipeline import Slow, known_batch, slow_transform, spend
from worker.data.test_loader import JOB

from epochmeter.worker.clock import Clock
from epochmeter.worker.data import timed_dataset
from epochmeter.worker.data.loader import make_loader
from epochmeter.worker.data.timed_dataset import TimedDataset
from epochmeter.worker.strategy import Single
from epochmeter.worker.timeline import HostTimeline

pytestmark = [pytest.mark.system, pytest.mark.alone]
STEPS, BATCH, PREFETCH = 8, 2, 2
NEAR, NEAR_S = 0.02, 0.002
"""Largest error per step: a fraction of the true value, or seconds."""


def passed(read_s, preprocess_s, compute_s, workers):
    """Return measured and true times of a pass whose workers started in the previous pass."""
    half_s = preprocess_s / BATCH / 2
    samples = TimedDataset(lambda _: Slow(STEPS * BATCH, read_s / BATCH, half_s), slow_transform(half_s))
    job = {**JOB, "batch": BATCH, "workers": workers, "prefetch": PREFETCH}
    loader, clock = make_loader(samples, job, Single(1), False), Clock(HostTimeline())
    for _ in range(2):
        known = dict.fromkeys(("compute_s", "loader_read_s", "loader_preprocess_s"), 0.0)
        clock.open()
        start = time.perf_counter()
        for batch in clock.batches(loader, lambda batch: batch):
            known["loader_read_s"] += batch.read_s
            known["loader_preprocess_s"] += batch.preprocess_s
            known["compute_s"] += spend(compute_s)
        known["data_stall_s"] = time.perf_counter() - start - known["compute_s"]
        clock.close()
    return {**clock.parts(), **loader.parts(clock.rows)}, known


@pytest.mark.parametrize(
    ("read_s", "preprocess_s", "compute_s"),
    [(0.01, 0.01, 0.06), (0.02, 0.02, 0.04), (0.06, 0.02, 0.02), (0.02, 0.06, 0.02)],
    ids=["hidden", "balanced", "exposed by reading", "exposed by preprocessing"],
)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_measured_times_match_the_known_times(monkeypatch, read_s, preprocess_s, compute_s, workers):
    monkeypatch.setattr(timed_dataset, "default_collate", known_batch)
    for _ in range(8):  # other processes may interrupt a measurement
        measured, known = passed(read_s, preprocess_s, compute_s, workers)
        off = {name: abs(measured[name] - value) / STEPS for name, value in known.items()}
        if all(error <= max(NEAR_S, NEAR * known[name] / STEPS) for name, error in off.items()):
            return
    pytest.fail(f"errors per step: {off} s")
