"""The search for the largest batch, with a scripted memory."""

import pytest
from omegaconf import OmegaConf

from epochmeter.config.errors import InputError
from hydra_plugins.search import TOLERANCE, BisectionSweeper, find_largest


@pytest.mark.parametrize("room", [1, 2, 3, 7, 100, 1000, 4097])
def test_largest_batch_that_fits_is_found_within_the_tolerance(room):
    tries = []

    def fits(batch):
        tries.append(batch)
        return batch <= room

    largest, too_large = find_largest(fits, lambda: 10**6)
    assert largest <= room < too_large
    assert too_large - largest <= max(1, TOLERANCE * largest)
    assert len(tries) == len(set(tries)) <= 20


def test_search_ends_with_all_samples_or_none_and_refuses_earlier_sweeps():
    assert find_largest(lambda batch: True, lambda: 50) == (50, None)
    assert find_largest(lambda batch: False, lambda: 50) == (0, 1)
    sweeper = BisectionSweeper()
    sweeper.config = OmegaConf.create({"sweep": {"prior": "multirun/earlier"}})
    with pytest.raises(InputError, match=r"`sweep\.prior="):
        sweeper.sweep(["model=resnet50"])
