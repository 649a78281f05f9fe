import ast
import copy
import inspect

import pytest
import torch
from torch import nn

from trainmeter.worker import loop
from trainmeter.worker.loop import Tally, evaluate, train

CPU = torch.device("cpu")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.fixture
def batches():
    """Three batches, of which the last is smaller."""
    numbers = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 4, generator=numbers), torch.randint(3, (size,), generator=numbers)) for size in (5, 5, 2)
    ]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Fixed(nn.Module):
    """Answers with its inputs, so that outputs are whatever a test writes down."""

    def forward(self, inputs):
        return inputs


def test_training_is_what_a_person_would_write_in_pytorch_parameter_for_parameter(model, batches):
    by_hand = copy.deepcopy(model)
    optimizer = sgd(by_hand)
    torch.manual_seed(2)
    by_hand.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(by_hand(inputs), targets).backward()
        optimizer.step()

    torch.manual_seed(2)
    train(model, batches, nn.CrossEntropyLoss(), sgd(model), Tally(CPU))

    ours, theirs = model.state_dict(), by_hand.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_evaluation_changes_nothing_and_follows_no_gradient(model, batches):
    before = copy.deepcopy(model.state_dict())
    evaluate(model, batches, nn.CrossEntropyLoss(), Tally(CPU))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_training_after_an_evaluation_trains(model, batches):
    evaluate(model, batches, nn.CrossEntropyLoss(), Tally(CPU))
    train(model, batches, nn.CrossEntropyLoss(), sgd(model), Tally(CPU))
    assert model.training


def test_means_are_over_samples_not_over_batches():
    right, wrong = [9.0, 0.0], [0.0, 9.0]
    batches = [
        (torch.tensor([right, right, right]), torch.tensor([0, 0, 0])),
        (torch.tensor([wrong]), torch.tensor([0])),
    ]
    losses = iter([torch.tensor(1.0), torch.tensor(5.0)])
    tally = Tally(CPU)
    evaluate(Fixed(), batches, lambda outputs, targets: next(losses), tally)
    assert tally.samples == 4
    assert tally.means() == ((3 * 1.0 + 1 * 5.0) / 4, 3 / 4)


def test_a_tally_of_many_samples_stays_exact():
    tally = Tally(CPU)
    tenth, outputs, targets = torch.tensor(0.1), torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    for _ in range(5000):  # so many tenths, added up in 32 bits, are wrong in the fifth digit
        tally.add(tenth, outputs, targets)
    assert tally.means() == (pytest.approx(0.1, rel=1e-7), 1.0)


def test_a_tally_keeps_no_graph_alive(model, batches):
    inputs, targets = batches[0]
    outputs = model(inputs)
    tally = Tally(CPU)
    tally.add(nn.functional.cross_entropy(outputs, targets), outputs, targets)
    assert tally.loss_sum.grad_fn is None
    assert not tally.loss_sum.requires_grad


def test_the_loop_imports_torch_alone():
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(loop))) if isinstance(node, ast.Import)]
    assert [alias.name for node in imports for alias in node.names] == ["torch"]
    assert not [node for node in ast.walk(ast.parse(inspect.getsource(loop))) if isinstance(node, ast.ImportFrom)]
