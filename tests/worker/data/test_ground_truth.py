"""Pipelines with known times, compared with the measurements of clock and loader."""

import time

import pytest
from pipeline import Slow, Took, known_batch, slow_transform, spend, truth

from epochmeter.worker.clock import Clock
from epochmeter.worker.data import timed_dataset
from epochmeter.worker.data.loader import train_loader
from epochmeter.worker.data.timed_dataset import TimedDataset
from epochmeter.worker.strategy import Single
from epochmeter.worker.timeline import HostTimeline

STEPS, BATCH, PREFETCH = 8, 2, 2
NEAR, NEAR_S = 0.02, 0.002
"""Largest error per step: a fraction of the true value, or seconds."""


@pytest.mark.parametrize(
    ("load_s", "compute_s", "workers", "stall_s"),
    [
        (4, 1, 0, 3 * 4),  # nothing overlaps
        (4, 1, 1, 4 + 3 + 3),  # the first completely, the others less compute
        (1, 4, 1, 1),  # hidden: only the first
        (4, 4, 1, 4),  # balanced
        (4, 2, 2, 4 + 0 + 0),  # two start together: the second is ready in time
        (4, 1, 2, 4 + 0 + 2),  # the third is ready at 8 and needed at 6
    ],
)
def test_expected_times_of_three_batches(load_s, compute_s, workers, stall_s):
    expected = truth(3 * [Took(load_s, 0)], 3 * [compute_s], workers, prefetch=2)
    assert expected.stall_s == pytest.approx(stall_s)
    assert expected.e2e_s == pytest.approx(stall_s + 3 * compute_s)
    assert (expected.read_s, expected.preprocess_s) == (3 * load_s, 0)


def passed(read_s, preprocess_s, compute_s, workers):
    """Return measured and true times of a pass whose workers started in the previous pass."""
    samples = TimedDataset(
        lambda _: Slow(STEPS * BATCH, read_s / BATCH, preprocess_s / BATCH / 2),
        slow_transform(preprocess_s / BATCH / 2),
    )
    job = {"batch": BATCH, "workers": workers, "prefetch": PREFETCH, "persistent_workers": True, "seed": 0}
    job["drop_last"] = False
    loader, clock = train_loader(samples, {**job, "pin_memory": False}, Single(1), False), Clock(HostTimeline())
    for _ in range(2):
        known = {"compute_s": 0.0, "loader_read_s": 0.0, "loader_preprocess_s": 0.0}
        clock.open()
        start = time.perf_counter()
        for batch in clock.batches(loader, lambda batch: batch):
            known["loader_read_s"] += batch.read_s
            known["loader_preprocess_s"] += batch.preprocess_s
            known["compute_s"] += spend(compute_s)
        known["data_stall_s"] = time.perf_counter() - start - known["compute_s"]
        clock.close()
    return {**clock.parts(), **loader.parts(clock.rows)}, known


@pytest.mark.system
@pytest.mark.alone
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
