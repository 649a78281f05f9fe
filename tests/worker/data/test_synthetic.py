import pytest
import torch

from epochmeter.worker.data.loader import loader_notes, make_loaders
from epochmeter.worker.data.synthetic import MAX_BYTES, SyntheticBatches
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification

IMAGES = Classification(auxiliary=0)


def job(batch=4, size=8, classes=3, **keys):
    dataset = {"name": "none", "channels": 1, "size": size, "classes": classes, "layout": "files"}
    return {
        "batch": batch,
        "seed": 0,
        "dataset": dataset,
        "synthetic_batches": True,
        "drop_last": False,
        "evaluate": True,
        "pin_memory": "auto",
        **keys,
    }


def test_synthetic_batches_match_a_dataloaders_number_and_sizes():
    batches = SyntheticBatches(10, job(), IMAGES, pinned=False)
    assert [inputs.shape for inputs, _ in batches] == [(4, 1, 8, 8), (4, 1, 8, 8), (2, 1, 8, 8)]
    assert [len(targets) for _, targets in batches] == [4, 4, 2]
    assert len(batches) == 3


def test_drop_last_drops_the_smaller_batch():
    batches = SyntheticBatches(10, job(), IMAGES, pinned=False, drop_last=True)
    assert [len(targets) for _, targets in batches] == [4, 4]
    assert (len(batches), batches.sizes, SyntheticBatches(9, job(), IMAGES, pinned=False).sizes) == (2, {4}, {4, 1})


def test_passes_can_be_cut_short():
    batches = SyntheticBatches(10, job(), IMAGES, pinned=False)
    batches.limit(2)
    assert [len(targets) for _, targets in batches] == [4, 4]
    batches.limit(None)
    assert [len(targets) for _, targets in batches] == [4, 4, 2]


def test_labels_are_valid_classes():
    targets = torch.cat([targets for _, targets in SyntheticBatches(400, job(), IMAGES, pinned=False)])
    assert set(targets.tolist()) == {0, 1, 2}
    assert targets.dtype == torch.long


def test_content_depends_on_the_seed():
    first, again, other = (
        next(iter(SyntheticBatches(8, job(seed=seed), IMAGES, pinned=False)))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_memory_is_bounded():
    batches = SyntheticBatches(100_000, job(batch=64, size=224), IMAGES, pinned=False)
    held = {inputs.data_ptr(): inputs.numel() * 4 for inputs, _ in batches}
    assert len(held) > 1
    assert sum(held.values()) <= MAX_BYTES


def test_batch_above_the_memory_bound_is_created():
    assert next(iter(SyntheticBatches(1000, job(batch=512, size=224), IMAGES, pinned=False)))[0].shape[0] == 512


def test_synthetic_batches_have_no_loader_metrics():
    batches = SyntheticBatches(10, job(), IMAGES, pinned=False)
    assert batches.parts([0.0] * 12) == {}
    assert list(batches.bad) == []


@pytest.mark.parametrize(("synthetic", "layout"), [(True, "files"), (False, "tensors")])
def test_synthetic_dataset_has_the_configured_samples(synthetic, layout):
    config = job(synthetic_batches=synthetic)
    config["dataset"]["layout"] = layout
    facts = {"folder": None, "splits": {"train": 9, "val": 5}}
    assert [len(batches) for batches in make_loaders(config, facts, IMAGES, Single(1), cuda=False)] == [3, 2]


def test_dataset_smaller_than_a_batch_has_a_note():
    small, enough = (SyntheticBatches(count, job(batch=4), IMAGES, pinned=False) for count in (3, 4))
    assert loader_notes(job(batch=4), enough) == []
    (note,) = loader_notes(job(batch=4), small)
    assert note.startswith("batch=4 exceeds the 3 ")


def test_drop_last_without_a_full_batch_is_an_error():
    facts = {"folder": None, "splits": {"train": 3, "val": 9}}
    with pytest.raises(ValueError, match=r"batch=4 exceeds the 3 .* Set batch=3 or less, or drop_"):
        make_loaders(job(drop_last=True), facts, IMAGES, Single(1), cuda=False)
    made = make_loaders(job(drop_last=True), dict(facts, splits={"train": 9, "val": 3}), IMAGES, Single(1), cuda=False)
    assert [len(batches) for batches in made] == [2, 1]


@pytest.mark.parametrize(
    ("train", "val", "evaluate", "error"),
    [(0, 5, True, "split train"), (9, 0, True, "split val"), (9, 0, False, None)],
)
def test_empty_split_is_an_error_if_it_is_needed(train, val, evaluate, error):
    facts = {"folder": None, "splits": {"train": train, "val": val}}
    if error:
        with pytest.raises(ValueError, match=f"dataset none has .*{error}"):
            make_loaders(job(evaluate=evaluate), facts, IMAGES, Single(1), cuda=False)
    else:
        loaders = make_loaders(job(evaluate=evaluate), facts, IMAGES, Single(1), cuda=False)
        assert [len(list(batches)) for batches in loaders] == [3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to copy to")
def test_nothing_is_pinned_without_a_gpu():
    facts = {"folder": None, "splits": {"train": 9, "val": 5}}
    made = make_loaders(job(pin_memory=True), facts, IMAGES, Single(1), cuda=False)
    assert [len(list(batches)) for batches in made] == [3, 2]
