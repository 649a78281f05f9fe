"""The search for the largest batch, with a scripted memory."""

from contextlib import nullcontext

import pytest
from metadata import RUN
from omegaconf import OmegaConf

from epochmeter.shared.problem import InputError, Problem
from epochmeter.shared.record import Record
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


@pytest.mark.parametrize(("code", "is_refused"), [("oom", False), ("exception", True)])
def test_only_a_lack_of_memory_makes_a_batch_too_large(tmp_path, monkeypatch, code, is_refused):
    def launch(number, overrides):
        record, fits = Record(tmp_path / str(number)), overrides[-1] == "batch=1"
        record.folder.mkdir()
        record.describe({}, {**RUN, "dataset": {"splits": {"train": 2}}})
        failure = None if fits else Problem("no", code=code).to_fields()
        record.write_summary({"state": "completed" if fits else "failed", "failure": failure}, "id")

    sweep = {"dir": str(tmp_path)}
    sweeper = BisectionSweeper.__new__(BisectionSweeper)
    sweeper.config = OmegaConf.create({"sweep": {"prior": None}, "hydra": {"sweep": sweep}})
    monkeypatch.setattr(sweeper, "launch_one", launch)
    with pytest.raises(InputError, match="not for lack of memory") if is_refused else nullcontext():
        sweeper.sweep([])
