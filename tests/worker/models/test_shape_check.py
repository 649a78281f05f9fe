import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from epochmeter.worker.data.synthetic import SyntheticBatches
from epochmeter.worker.device import sample_count
from epochmeter.worker.loop import EpochStats, train
from epochmeter.worker.models.lenet import LeNet
from epochmeter.worker.models.model_stats import compute_model_stats
from epochmeter.worker.models.seq2seq import Seq2Seq
from epochmeter.worker.models.shape_check import check_inputs, check_smallest
from epochmeter.worker.models.vision import classifier
from epochmeter.worker.precision import NullContext
from epochmeter.worker.tasks import Classification, Regression, Translation

IMAGES, NUMBERS, WORDS = Classification(auxiliary=0.4), Regression("smooth_l1_loss"), Translation()


def job(name="mine", size=32, channels=1, classes=10, batch=4, dataset=None, target_accuracy=None):
    images = {"name": "digits", "size": size, "channels": channels, "classes": classes}
    return {"model": {"name": name}, "dataset": dataset or images, "task": {"name": "mine"}, "batch": batch,
            "target_accuracy": target_accuracy}  # fmt: skip


POWERS = job("polynomial", dataset={"name": "polynomial", "features": 4})
with torch.device("meta"):
    TRANSFORMER = classifier("vit_b_32", 3, 10)
PAIRS = job("seq2seq", dataset={"name": "pairs", "words": 20, "length": 6})


class Masked(nn.BatchNorm2d):
    """Trains anywhere, and cannot be run on torch's meta device: its mask is a plain tensor."""

    mask = torch.ones(32, 32)

    def forward(self, images):
        return super().forward(images * self.mask).sum((1, 2, 3)).unsqueeze(1).expand(-1, 10)


def test_model_that_fails_only_on_meta_is_accepted():
    model, state = Masked(1).eval(), torch.random.get_rng_state()
    check_inputs(model, job(), IMAGES)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (model.running_mean.item(), model.training) == (0, False)


SIZE = r"3 x (\d+) x \1, of dataset digits: .*\n  hint: set another dataset\.size, or"
SAMPLES = r"model polynomial does not accept the samples of dataset polynomial: .*\(2x4 and"


def test_mismatched_model_sizes_are_rejected():
    for model, config, task, error in (
        (LeNet(3, 10), job(size=8, channels=3), IMAGES, SIZE),
        (LeNet(3, 10), job(size=64, channels=3), IMAGES, SIZE),
        (TRANSFORMER, job(size=32, channels=3), IMAGES, SIZE),
        (LeNet(1, 5), job(), IMAGES, r"scores for 5 classes, but dataset digits has 10\n  hint: set model.classes=10"),
        (nn.Linear(3, 1), POWERS, NUMBERS, SAMPLES),
        (nn.Linear(4, 2), POWERS, NUMBERS, r"2 numbers per sample, but dataset polynomial has 1"),
        (
            Seq2Seq(9, "gru", 8, 1, 0),
            PAIRS,
            WORDS,
            r"for 9 words, but dataset pairs has 20\n  hint: set model.words=20",
        ),
    ):
        with pytest.raises(ValueError, match=error):
            check_inputs(model, config, task)


class Labels:
    """Classification of numbers by labels, whose dataset does not state the number of classes."""

    def example(self, dataset, count, numbers):
        return torch.randn(count, 4), torch.randint(3, (count,))


def test_matching_model_sizes_are_accepted():
    check_inputs(LeNet(1, 10), job(), IMAGES)
    check_inputs(nn.Linear(4, 1), POWERS, NUMBERS)
    check_inputs(Seq2Seq(20, "gru", 8, 1, 0), PAIRS, WORDS)
    check_inputs(nn.Linear(4, 3), job(dataset={"name": "mine"}), Labels())


class Named(nn.Linear):
    """Takes and gives dictionaries, as detection models do."""

    def forward(self, inputs):
        return {"scores": super().forward(inputs["powers"])}


class NamedTask:
    """Regression of dictionaries."""

    def example(self, dataset, count, numbers):
        return {"powers": torch.randn(count, 4), "name": "x"}, {"scores": torch.randn(count, 2)}

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs["scores"], targets["scores"])

    def weight(self, targets):
        return len(targets["scores"])

    def correct(self, outputs, targets):
        return None


def test_model_of_dictionaries_is_checked_trained_and_has_stats():
    model, task, config = Named(4, 2), NamedTask(), job("mine", dataset={"name": "mine"})
    check_inputs(model, config, task)
    check_inputs(LeNet(1, 10), job(target_accuracy=0.9), IMAGES)
    with pytest.raises(ValueError, match=r"target_accuracy=0\.9: task mine .*\n  hint: set target_loss"):
        check_inputs(model, dict(config, target_accuracy=0.9), task)
    config |= {"optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1}, "precision": "fp32"}
    assert compute_model_stats(model, config, task, torch.device("cpu")).metrics["flops_per_sample"] == 2 * 2 * 4 * 2
    stats = EpochStats(task, sample_count)
    batches = SyntheticBatches(10, dict(config, seed=0), task, pinned=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, batches, task, optimizer, stats, NullContext(), GradScaler(enabled=False))
    assert (stats.samples, stats.totals().weight) == (10, 10)


NORMALIZED = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 10), nn.BatchNorm1d(10))


def test_batch_norm_with_a_single_sample_is_rejected_unless_it_is_dropped():
    for batch, count, replicas, error in (
        (1, 40, 1, r"batch=1 a batch of 1 leaves .*\n  hint: set a batch with 2 or more samples per device"),
        (13, 39, 4, r"batch=13 a batch of 13 leaves .*\n  hint: set a batch with 2 or more samples per device"),
        (8, 41, 1, r"batch=8 a batch of 1 leaves .*\n  hint: set drop_last=true"),
    ):
        with pytest.raises(ValueError, match=error):
            check_smallest(NORMALIZED, {**job(batch=batch), "drop_last": False}, count, IMAGES, replicas)
    for model, batch, drop_last in ((LeNet(1, 10), 1, False), (NORMALIZED, 5, False), (NORMALIZED, 8, True)):
        check_smallest(model, {**job(batch=batch), "drop_last": drop_last}, 42 if batch == 5 else 41, IMAGES, 1)
