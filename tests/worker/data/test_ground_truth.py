"""Pipelines of which all is known: what the worker's clock and loader's timers say of them."""

import pytest
from pipeline import Slow, batching_s, handing_over_s, slow_transform, spend, truth

from trainmeter.worker.clock import Clock
from trainmeter.worker.data.loader import train_loader
from trainmeter.worker.data.timing import Timed
from trainmeter.worker.strategy import Single
from trainmeter.worker.timeline import HostTimeline

STEPS, BATCH, PREFETCH = 12, 2, 2
NEAR, NEAR_S = 0.02, 0.002
"""How far off a step may be: a share of its truth, or seconds."""


@pytest.mark.parametrize(
    ("load_s", "compute_s", "workers", "stall_s"),
    [
        (4, 1, 0, 3 * 4),  # nothing overlaps
        (4, 1, 1, 4 + 3 + 3),  # the first is waited for whole, the others but for what computing hides
        (1, 4, 1, 1),  # hidden: only the first
        (4, 4, 1, 4),  # balanced
        (4, 2, 2, 4 + 0 + 0),  # two begin together: the second is there when the first has been computed
        (4, 1, 2, 4 + 0 + 2),  # the third comes at 8, and is wanted at 6
    ],
)
def test_the_truth_of_three_batches(load_s, compute_s, workers, stall_s):
    found = truth(3, load_s, 0, compute_s, workers, prefetch=2)
    assert found.stall_s == pytest.approx(stall_s)
    assert found.e2e_s == pytest.approx(stall_s + 3 * compute_s)
    assert (found.read_s, found.preprocess_s) == (3 * load_s, 0)


def test_a_loader_gets_no_further_ahead_than_it_may_prefetch():
    assert truth(4, 3, 0, 2, workers=1, prefetch=1).stall_s == 3 + 1 + 1 + 1
    assert truth(4, 3, 0, 100, workers=1, prefetch=1).stall_s == truth(4, 3, 0, 100, workers=1, prefetch=2).stall_s == 3


def measured(read_s, preprocess_s, compute_s, workers):
    """An epoch's parts, its loader's processes begun in the epoch before it."""
    samples = Timed(
        lambda _: Slow(STEPS * BATCH, read_s / BATCH, preprocess_s / BATCH / 2),
        slow_transform(preprocess_s / BATCH / 2),
    )
    job = {"batch": BATCH, "workers": workers, "prefetch": PREFETCH, "persistent_workers": True, "seed": 0}
    job["drop_last"] = False
    loader, clock = train_loader(samples, {**job, "pin_memory": False}, Single(1), False), Clock(HostTimeline())
    for _ in range(2):
        clock.open()
        for _ in clock.batches(loader, lambda batch: batch):
            spend(compute_s)
        clock.close()
    return {**clock.parts(), **loader.parts(clock.rows)}


@pytest.mark.system
@pytest.mark.parametrize(
    ("read_s", "preprocess_s", "compute_s"),
    [(0.01, 0.01, 0.06), (0.02, 0.02, 0.04), (0.06, 0.02, 0.02), (0.02, 0.06, 0.02)],
    ids=["hidden", "balanced", "exposed by reading", "exposed by preprocessing"],
)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_is_measured_is_near_the_truth(read_s, preprocess_s, compute_s, workers):
    preprocess_known_s = preprocess_s + batching_s(BATCH, preprocess_s / BATCH / 2)
    known = truth(STEPS, read_s, preprocess_known_s, compute_s, workers, PREFETCH)
    # A batch's way from another process is torch's own, and stall: it is known from its loader by itself.
    handing_over = handing_over_s(BATCH, workers, compute_s) if workers else 0
    expected = {
        "fetch_stall_s": known.stall_s + STEPS * handing_over,
        "loader_read_s": known.read_s,
        "loader_preprocess_s": known.preprocess_s,
    }
    for _ in range(4):  # until nobody else was given the processor
        found = measured(read_s, preprocess_s, compute_s, workers)
        off = {name: abs(found[name] - value) / STEPS for name, value in expected.items()}
        if all(error <= max(NEAR_S, NEAR * expected[name] / STEPS) for name, error in off.items()):
            return
    pytest.fail(f"never near: off by {off} s of a step")
