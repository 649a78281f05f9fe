"""The contract of adapters finds each way to break it."""

from itertools import chain

import pytest
import torch
from cases import case, cases

from epochmeter import Meter
from epochmeter.agent import own_controller
from epochmeter.testing import check_adapter, check_loader

EPOCHS, STEPS = 2, 4


class Adapter:
    """A correct adapter; the others break one rule each."""

    epochs = EPOCHS

    def __init__(self):
        self.meter = Meter()

    def begin(self):
        self.meter.expect_epochs(self.epochs)

    def batches(self, data):
        return self.meter.batches(data)

    def end(self):
        self.meter.close()

    def step(self, model):
        pass


class NotClosed(Adapter):
    def end(self):
        pass


class NotMeasured(Adapter):
    def batches(self, data):
        return data


class OfSomeBatches(Adapter):
    def batches(self, data):
        return chain(self.meter.batches(data[:-1]), data[-1:])


class OtherNumber(Adapter):
    epochs = 5


class Changing(Adapter):
    def step(self, model):
        with torch.no_grad():
            model.weight += 1


def train(adapter):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.full((3, 2), float(number)) for number in range(STEPS)]
    if adapter:
        adapter.begin()
    for _ in range(EPOCHS):
        for inputs in adapter.batches(data) if adapter else data:
            model(inputs).sum().backward()
            optimizer.step()
            if adapter:
                adapter.step(model)
        with torch.no_grad():
            for inputs in adapter.batches(data[:2]) if adapter else data[:2]:
                model(inputs)
    if adapter:
        adapter.end()
    return model.parameters()


def test_adapter_with_complete_windows_passes_and_leaves_nothing():
    start = own_controller.start_controller
    check_adapter(Adapter, train, epochs=EPOCHS, steps=STEPS, evaluations=EPOCHS)
    assert own_controller.start_controller is start


@cases(
    case(kind=NotMeasured, reason="2 epochs have 0 windows"),
    case(kind=OfSomeBatches, reason="epoch 1 has 3 of 4 steps"),
    case(kind=OtherNumber, reason="the adapter states 5 epochs, and 2 were trained"),
    case(kind=Changing, reason="gives other weights"),
    case(kind=NotClosed, reason="the run has not ended"),
)
def test_adapter_with_other_windows_or_weights_is_found(kind, reason):
    made = []

    def make():
        made.append(kind())
        return made[-1]

    try:
        with pytest.raises(AssertionError, match=reason):
            check_adapter(make, train, epochs=EPOCHS, steps=STEPS, evaluations=EPOCHS)
    finally:
        for adapter in made:
            adapter.meter.close()


class Loader:
    """A correct loader of another library."""

    batch_size = 3

    def __len__(self):
        return STEPS

    def __iter__(self):
        yield from (torch.ones(3, 2) for _ in range(STEPS))


class WithoutLength:
    def __iter__(self):
        yield from (torch.ones(3, 2) for _ in range(STEPS))


class Emptied(Loader):
    def __init__(self):
        self.batches = iter([1] * STEPS)

    def __iter__(self):
        return self.batches


@cases(case(kind=Loader, samples=3 * STEPS), case(kind=WithoutLength, samples=None))
def test_loader_whose_passes_are_measured_passes(kind, samples):
    check_loader(kind, steps=STEPS, samples=samples)


@cases(
    case(make=Emptied, steps=5, samples=None, reason="a pass has 4 batches, not 5"),
    case(make=Loader, steps=5, samples=None, reason="a pass has 4 batches, not 5"),
    case(make=Loader, steps=STEPS, samples=99, reason="passes of 99 samples have"),
    case(make=Emptied, steps=STEPS, samples=None, reason="other batches"),
    case(make=lambda: [1] * STEPS, steps=STEPS, samples=None, reason="`measure.loader` is not measured"),
)
def test_loader_that_cannot_be_measured_is_found(make, steps, samples, reason):
    with pytest.raises(AssertionError, match=reason):
        check_loader(make, steps=steps, samples=samples)
