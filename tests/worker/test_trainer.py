"""Training as configured."""

import copy

import pytest
import torch
from torch import nn

from epochmeter.worker.strategy import Single
from epochmeter.worker.tasks import Classification
from epochmeter.worker.trainer import Trainer, compile_model

CPU = torch.device("cpu")
JOB = {
    "model": {"_target_": "epochmeter.worker.models.lenet.LeNet", "name": "lenet", "channels": 1, "classes": 10},
    "dataset": {"name": "digits", "size": 32, "channels": 1, "classes": 10},
    "optimizer": {"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.1},
    "scheduler": {"_target_": "torch.optim.lr_scheduler.StepLR", "name": "step", "step_size": 1, "gamma": 0.5},
    "batch": 4, "lr_scaling": "none", "lr_batch": 256, "precision": "fp32", "compile": False, "channels_last": False,
    "target_accuracy": None,
}  # fmt: skip
IMAGES = Classification(auxiliary=0)


def make_trainer(**keys):
    torch.manual_seed(0)
    return Trainer({**JOB, **keys}, IMAGES, Single(1), CPU)


@pytest.fixture
def batches():
    numbers = torch.Generator().manual_seed(1)
    return [IMAGES.example(JOB["dataset"], count, numbers) for count in (4, 4, 2)]


def test_trainer_uses_the_configured_optimizer_and_schedule(batches):
    trainer = make_trainer()
    by_hand = copy.deepcopy(trainer.model).train()
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(2):
        trainer.train_epoch(batches)
        trainer.step_scheduler()
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(by_hand(inputs), targets).backward()
            optimizer.step()
        optimizer.param_groups[0]["lr"] /= 2
    assert trainer.learning_rate() == 0.025
    torch.testing.assert_close(trainer.model.state_dict(), by_hand.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("keys", "error"),
    [({"channels_last": True}, 0.02), ({"precision": "bf16"}, 0.02),
     pytest.param({"compile": True}, 1e-4, marks=pytest.mark.system)],
)  # fmt: skip
def test_reduced_precision_trains_similarly_and_a_compiled_model_equally(batches, keys, error):
    plain, other = make_trainer(), make_trainer(**keys)
    same_size = batches[:2]  # a model is compiled for each size
    losses = [each.train_epoch([each.move(batch) for batch in same_size]).losses() for each in (plain, other)]
    assert losses[0] == pytest.approx(losses[1], rel=error)


def test_compile_needs_a_version_of_torch_that_supports_it(monkeypatch):
    monkeypatch.delattr(torch, "compile")
    with pytest.raises(ValueError, match=r"compile=true, but torch .* has no torch\.compile"):
        compile_model(nn.Linear(1, 1))
