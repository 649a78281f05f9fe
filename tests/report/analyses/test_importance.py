"""The variance that each key explains: known answers."""

import itertools
import math

import pytest
from sweeps import costing

from epochmeter.report.analyses.importance import key_shares
from epochmeter.report.runs.configuration import group_repeats
from epochmeter.report.runs.costs import costs

BATCHES, WORKERS = (8, 16, 32, 64), (1, 2, 4)
GRID = list(itertools.product(BATCHES, WORKERS))


def shares(times, energies=None, keys=GRID, **more):
    """The share of time and energy of each key, of runs with a batch, workers and other keys."""
    runs = [
        costing(number, time_s, energies and energies[number], batch=batch, workers=workers,
                **{key: values[number] for key, values in more.items()})
        for number, ((batch, workers), time_s) in enumerate(zip(keys, times, strict=True))
    ]  # fmt: skip
    return {share.key: (share.time, share.energy) for share in key_shares(costs(group_repeats(runs)))}


def effects(batch, workers, interaction=0.0):
    """Times of a grid whose logarithms are sums of a key's coefficient times its centered place."""
    return [
        math.exp(batch * (b - 1.5) + workers * (w - 1) + interaction * (b - 1.5) * (w - 1))
        for b, w in itertools.product(range(4), range(3))
    ]


def test_share_on_a_full_grid_is_eta_squared_without_interactions():
    """By hand: sums of squares 3 x 5 x 0.1^2 of the batch and 4 x 2 x 0.2^2 of the workers."""
    found = shares(effects(0.1, 0.2))
    assert [*found.items()] == [
        ("workers", (pytest.approx(0.32 / 0.47), None)), ("batch", (pytest.approx(0.15 / 0.47), None)),
    ]  # fmt: skip
    # Interactions count as chance: 0.1 per 6 degrees of freedom; the batch has 3 of them, the workers 2.
    found = shares(effects(0.1, 0.2, 0.1))
    assert found["batch"][0] == pytest.approx((0.15 - 3 * 0.1 / 6) / 0.57)
    assert found["workers"][0] == pytest.approx((0.32 - 2 * 0.1 / 6) / 0.57)


def test_energy_has_shares_of_its_own_unless_it_is_constant():
    found = shares(effects(0.1, 0.0), effects(0.0, 0.1))
    assert found["batch"] == pytest.approx((1.0, 0.0), abs=1e-9)
    assert found["workers"] == pytest.approx((0.0, 1.0), abs=1e-9)
    assert shares(effects(0.1, 0.2), [100.0] * 12)["batch"] == (pytest.approx(0.15 / 0.47), None)
    assert shares([10.0] * 12) == {}, "nor has constant time"


def test_keys_that_vary_together_share_their_explained_variance():
    keys = [(batch, batch // 8) for batch in BATCHES] * 2
    found = shares([1.0, 2.0, 4.0, 8.0, 1.1, 2.2, 4.4, 8.8], keys=keys)
    assert found == {}, "repeats are one configuration, and four of them leave nothing for chance"
    found = shares([1.0, 2.0, 4.0, 8.0, 1.0, 2.1, 4.0, 8.1], keys=keys, prefetch=[1] * 4 + [2] * 4)
    assert found["batch"][0] == pytest.approx(found["workers"][0])
    assert found["batch"][0] == pytest.approx(0.5, abs=0.01)


def test_missing_configurations_do_not_confuse_the_keys_and_too_few_have_no_shares():
    kept = [place for place in range(12) if place not in (1, 5, 6)]
    found = shares([effects(0.1, 0.0)[place] for place in kept], keys=[GRID[place] for place in kept])
    assert found["batch"][0] > 0.9
    assert found["workers"][0] < 0.1
    for keys in ([(8, 1), (16, 1), (32, 1)], [(8, 1), (16, 2), (32, 4)], [(8, 1), (8, 2), (16, 1)]):
        assert shares([1.0, 2.0, 3.0], keys=keys) == {}
