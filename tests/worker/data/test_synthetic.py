from contextlib import nullcontext

import pytest
from worker.data.test_loader import JOB

from epochmeter.worker.data.loader import make_loaders
from epochmeter.worker.data.synthetic import MAX_BYTES, SyntheticBatches
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification

IMAGES = Classification(auxiliary=0)


def job(batch=4, size=8, classes=3, **keys):
    dataset = {"name": "none", "channels": 1, "size": size, "classes": classes, "layout": "files"}
    return {**JOB, "batch": batch, "dataset": dataset, "synthetic_batches": True, "evaluate": True, **keys}


def test_synthetic_batches_match_a_dataloaders_number_and_sizes():
    batches = SyntheticBatches(10, job(), IMAGES, pinned=False)
    assert [inputs.shape for inputs, _ in batches] == [(4, 1, 8, 8), (4, 1, 8, 8), (2, 1, 8, 8)]
    assert len(batches) == 3


def test_memory_is_bounded():
    batches = SyntheticBatches(100_000, job(batch=64, size=224), IMAGES, pinned=False)
    held = {inputs.data_ptr(): inputs.numel() * 4 for inputs, _ in batches}
    assert len(held) > 1
    assert sum(held.values()) <= MAX_BYTES


@pytest.mark.parametrize(("synthetic", "layout"), [(True, "files"), (False, "tensors")])
def test_synthetic_dataset_has_the_configured_samples(synthetic, layout):
    config = job(synthetic_batches=synthetic)
    config["dataset"]["layout"] = layout
    facts = {"folder": None, "splits": {"train": 9, "val": 5}}
    assert [len(batches) for batches in make_loaders(config, facts, IMAGES, Single(1), cuda=False)] == [3, 2]


@pytest.mark.parametrize(
    ("train", "val", "evaluate", "error"),
    [(0, 5, True, "0 samples in split train"), (9, 0, True, "0 samples in split val"), (9, 0, False, None)],
)
def test_empty_split_is_an_error_if_it_is_needed(train, val, evaluate, error):
    facts = {"folder": None, "splits": {"train": train, "val": val}}
    with pytest.raises(ValueError, match=f"dataset none has .*{error}") if error else nullcontext():
        loaders = make_loaders(job(evaluate=evaluate), facts, IMAGES, Single(1), cuda=False)
    assert error or [len(list(batches)) for batches in loaders] == [3]
