"""Losses of tasks and their numbers of correct predictions: known answers."""

import math

import pytest
import torch

from epochmeter.worker.tasks import PAD, Classification, Regression, Translation


def shapes(inputs):
    return tuple(shapes(each) for each in inputs) if isinstance(inputs, tuple) else tuple(inputs.shape)


def test_example_has_the_datasets_shape_and_depends_on_the_seed():
    for task, dataset, inputs, targets in (
        (Classification(auxiliary=0.4), {"channels": 3, "size": 8, "classes": 5}, (6, 3, 8, 8), (6,)),
        (Regression(loss="mse_loss"), {"features": 4}, (6, 4), (6, 1)),
        (Translation(), {"length": 7, "words": 11}, ((6, 7), (6, 7)), (6, 7)),
    ):
        made, again = (task.example(dataset, 6, torch.Generator().manual_seed(3)) for _ in range(2))
        assert (shapes(made[0]), shapes(made[1])) == (inputs, targets)
        assert torch.equal(made[1], again[1])


def test_auxiliary_outputs_add_weighted_loss_but_no_predictions():
    sure, undecided, labels = torch.tensor([[99.0, 0.0]]), torch.zeros(1, 2), torch.tensor([0])
    task = Classification(auxiliary=0.4)
    assert task.loss((sure, undecided), labels).item() == pytest.approx(0.4 * math.log(2))
    assert task.loss((undecided, sure, sure), labels).item() == pytest.approx(math.log(2))
    assert task.loss((undecided, None), labels).item() == pytest.approx(math.log(2))
    assert task.correct((sure, torch.tensor([[0.0, 99.0]])), labels).tolist() == [True]


def test_regression_has_no_accuracy():
    task, outputs, targets = Regression(loss="mse_loss"), torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [4.0]])
    assert task.loss(outputs, targets).item() == 2.0
    assert task.weight(targets) == 2
    assert task.correct(outputs, targets) is None


def test_padding_is_ignored_by_loss_and_accuracy():
    targets = torch.tensor([[3, 4, PAD], [5, PAD, PAD]])
    outputs = torch.zeros(2, 3, 8)
    outputs[0, 0, 3] = 99.0  # correct, and has no loss
    outputs[1, 1:, 7] = 99.0  # wrong, were it not padding
    task = Translation()
    assert task.weight(targets) == 3
    assert task.correct(outputs, targets).tolist() == [[True, False, False], [False, False, False]]
    assert task.loss(outputs, targets).item() == pytest.approx(2 * math.log(8) / 3)
