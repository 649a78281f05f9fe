import pytest
from worker.data.test_loader import JOB

from epochmeter.worker.data.loader import make_loaders
from epochmeter.worker.data.synthetic import MAX_BYTES, SyntheticBatches
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification

IMAGES = Classification(auxiliary=0)


def job(batch=4, size=8, layout="files", **keys):
    dataset = {"name": "none", "channels": 1, "size": size, "classes": 3, "layout": layout}
    return {**JOB, "batch": batch, "dataset": dataset, "synthetic_batches": True, "evaluate": True, **keys}


def test_synthetic_batches_match_a_dataloaders_number_and_sizes_in_bounded_memory():
    batches = SyntheticBatches(10, job(), IMAGES, pinned=False)
    assert [inputs.shape for inputs, _ in batches] == [(4, 1, 8, 8), (4, 1, 8, 8), (2, 1, 8, 8)]
    assert len(batches) == 3
    batches = SyntheticBatches(100_000, job(batch=64, size=224), IMAGES, pinned=False)
    held = {inputs.data_ptr(): inputs.numel() * 4 for inputs, _ in batches}
    assert len(held) > 1
    assert sum(held.values()) <= MAX_BYTES


def steps(train, val, **keys):
    facts = {"folder": None, "splits": {"train": train, "val": val}}
    return [len(list(batches)) for batches in make_loaders(job(**keys), facts, IMAGES, Single(1), cuda=False)]


def test_synthetic_dataset_has_the_configured_samples_and_no_empty_split():
    assert steps(9, 5) == steps(9, 5, synthetic_batches=False, layout="tensors") == [3, 2]
    assert steps(9, 0, evaluate=False) == [3]
    for train, val, error in ((0, 5, "0 samples in split train"), (9, 0, "0 samples in split val")):
        with pytest.raises(ValueError, match=f"dataset none has .*{error}"):
            steps(train, val)
