import torch

from epochmeter.worker.data.loader import make_loaders
from epochmeter.worker.data.polynomial import Polynomial, powers
from epochmeter.worker.loop import EpochStats, evaluate, train
from epochmeter.worker.models.polynomial import Polynomial as Model
from epochmeter.worker.precision import NullContext, NullScaler
from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Regression


def samples(split="train", count=100, features=4, seed=0):
    return Polynomial("none", split, powers({"features": features}, split), count, features, seed)


def stacked(samples):
    return [torch.stack(parts) for parts in zip(*(samples[index] for index in range(len(samples))), strict=True)]


def test_splits_and_seeds_have_different_samples():
    (train, _), (val, _) = stacked(samples()), stacked(samples("val"))
    assert not {x.item() for x in train[:, 0]} & {x.item() for x in val[:, 0]}
    (again, _), (other, _) = stacked(samples()), stacked(samples(seed=4))
    assert torch.equal(train, again)
    assert not torch.equal(train, other)


def test_regression_converges_as_in_the_tutorial(composed):
    """Without momentum, as the tutorial trains it, down to a loss of 1e-3 in validation."""
    job = dict(composed("dataset=polynomial", "batch=32", "workers=0"))
    numbers, task = {"folder": None}, Regression("smooth_l1_loss")
    training, validation = (list(loader) for loader in make_loaders(job, numbers, task, Single(1), cuda=False))
    torch.manual_seed(0)
    model = Model(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    while not losses or (losses[-1] >= 1e-3 and len(losses) < 60):
        stats = EpochStats(task, "cpu")
        evaluate(model, validation, task, stats, NullContext())
        losses.append(stats.totals()["loss_sum"] / stats.totals()["weight"])
        train(model, training, task, optimizer, EpochStats(task, "cpu"), NullContext(), NullScaler())
    assert losses[0] > 5
    assert losses[-1] < 1e-3
