import copy

import pytest
import torch
from torch import nn

from epochmeter.worker import loop
from epochmeter.worker.loop import EpochStats, Totals, evaluate
from epochmeter.worker.precision import NullContext
from epochmeter.worker.tasks import Classification

IMAGES = Classification(auxiliary=0)


def test_evaluation_changes_no_weights_and_computes_no_gradient():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    batches = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(2)]
    before = copy.deepcopy(model.state_dict())
    evaluate(model, batches, IMAGES, EpochStats(IMAGES), NullContext())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


@pytest.mark.parametrize("chunk_steps", [2, 1024])
def test_losses_of_all_steps_are_kept_and_sums_are_over_samples_not_batches(monkeypatch, chunk_steps):
    monkeypatch.setattr(loop, "CHUNK_STEPS", chunk_steps)
    correct, wrong = [9.0, 0.0], [0.0, 9.0]
    batches = [(torch.tensor([correct] * 3), torch.tensor([0, 0, 0])), (torch.tensor([wrong]), torch.tensor([0]))] * 2
    stats, task, losses = EpochStats(IMAGES), Classification(auxiliary=0), iter((1.0, 5.0, 2.0, 6.0))
    task.loss = lambda outputs, targets: torch.tensor(next(losses))
    evaluate(nn.Identity(), batches, task, stats, NullContext())
    assert (stats.losses(), stats.weights(), stats.samples) == ([1.0, 5.0, 2.0, 6.0], [3.0, 1.0, 3.0, 1.0], 8)
    assert stats.last_loss() == 6.0
    assert stats.totals() == Totals(weight=8, loss_sum=3 * 1.0 + 1 * 5.0 + 3 * 2.0 + 1 * 6.0, correct=6)


def test_stats_of_many_samples_are_exact():
    stats = EpochStats(IMAGES)
    tenth, outputs, targets = torch.tensor(0.1), torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    for _ in range(5000):  # a sum of 5,000 tenths in 32 bits is wrong in the fifth digit
        stats.add(tenth, outputs, targets)
    assert stats.totals() == Totals(weight=5000, loss_sum=pytest.approx(500, rel=1e-7), correct=5000)
