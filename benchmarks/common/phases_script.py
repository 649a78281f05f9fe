"""A training script whose phases are known; it prints the time of each per epoch in seconds, as JSON.

`python phases_script.py LOOP`: a name in `LOOPS`. The script times its own calls; a part within another one is its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from pipeline import spend
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from epochmeter.shared.phases import BACKWARD, BATCH, BETWEEN, FORWARD, OPTIMIZER, OTHER

BATCHES, BATCH_SIZE, EPOCHS = 60, 4, 4
PREPARE_S, FORWARD_S, LOSS_S, BACKWARD_S, OPTIMIZER_S, OTHER_S = 0.001, 0.003, 0.002, 0.005, 0.002, 0.001
END = "end"  # of a part
Loop = Callable[["Training", DataLoader], None]


class Truth:
    """Times the parts of a loop by the script's clock, and adds them up later, so that its own work is small."""

    def __init__(self) -> None:
        self._borders: list[tuple[str, float]] = []

    def begin(self, phase: str) -> None:
        self._borders.append((phase, time.perf_counter()))

    def end(self) -> None:
        self._borders.append((END, time.perf_counter()))

    def take(self) -> Counter[str]:
        """Return the seconds of each phase since the last call."""
        lasts = [(OTHER, 0.0), *self._lasts(), (OTHER, 0.0)]
        self._borders.clear()
        seconds: Counter[str] = Counter()
        for (before, _), (phase, last_s), (after, _) in zip(lasts, lasts[1:], lasts[2:], strict=False):
            is_between = phase in (OTHER, OPTIMIZER)
            seconds[BETWEEN.get((before, after), phase) if is_between else phase] += last_s
        return seconds

    def _lasts(self) -> Iterator[tuple[str, float]]:
        """Yield the innermost part that goes on, and for how long, from each border to the next one."""
        going_on: list[str] = []
        for (phase, begun_s), (_, ended_s) in pairwise(self._borders):
            if phase == END:
                going_on.pop()
            else:
                going_on.append(phase)
            yield (going_on[-1] if going_on else OTHER), ended_s - begun_s


class Slow(torch.autograd.Function):
    """Takes a known time in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx, values: torch.Tensor) -> torch.Tensor:
        spend(FORWARD_S)
        return values.clone()

    @staticmethod
    def backward(ctx, gradients: torch.Tensor) -> torch.Tensor:
        spend(BACKWARD_S)
        return gradients


class Model(nn.Module):
    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.layer, self.is_checkpointed = nn.Linear(4, 4), is_checkpointed

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.is_checkpointed:
            return checkpoint(self.inner, inputs, use_reentrant=False)
        return self.inner(inputs)

    def inner(self, inputs: torch.Tensor) -> torch.Tensor:
        return Slow.apply(self.layer(inputs))


class Criterion(nn.Module):
    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        spend(LOSS_S)
        return outputs.square().mean()


class Optimizer(torch.optim.SGD):
    """Times its own work, without the range for torch's profiler around it."""

    truth: Truth

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        self.truth.begin(OPTIMIZER)
        spend(OPTIMIZER_S)
        result = super().step(closure)
        self.truth.end()
        return result


class Training:
    """A model, its optimizer, and their timed parts."""

    def __init__(self, truth: Truth, **options: bool) -> None:
        self.truth, self.model, self.loss = truth, Model(**options), Criterion()
        self.optimizer = Optimizer(self.model.parameters(), lr=0.1)
        self.optimizer.truth = truth

    def prepare(self) -> None:
        self.truth.begin(BATCH)
        self.truth.end()
        spend(PREPARE_S)

    def forward(self, inputs: torch.Tensor, model: nn.Module | None = None) -> torch.Tensor:
        called = model or self.model
        self.truth.begin(FORWARD)
        outputs = called(inputs)
        self.truth.end()
        return outputs

    def backward(self, loss: torch.Tensor, **options: bool) -> None:
        self.truth.begin(BACKWARD)
        loss.backward(**options)
        self.truth.end()

    def step(self, closure: Callable[[], float] | None = None) -> None:
        spend(OTHER_S)
        self.optimizer.step(closure)

    def train(self, inputs: torch.Tensor) -> None:
        self.prepare()
        self.backward(self.loss(self.forward(inputs)))
        self.step()


def plain(training: Training, loader: DataLoader) -> None:
    for inputs in loader:
        training.train(inputs)


def accumulation(training: Training, loader: DataLoader) -> None:
    for number, inputs in enumerate(loader, 1):
        training.prepare()
        training.backward(training.loss(training.forward(inputs)))
        if number % 4 == 0:
            training.step()


def gan(training: Training, loader: DataLoader) -> None:
    """The discriminator on two batches, then the generator through the discriminator."""
    other = nn.Sequential(Model())
    for inputs in loader:
        training.prepare()
        for _ in range(2):
            training.backward(training.loss(training.forward(inputs)))
        training.step()
        training.backward(training.loss(training.forward(training.forward(inputs, other))))
        training.step()


def closure(training: Training, loader: DataLoader) -> None:
    for inputs in loader:

        def compute(inputs: torch.Tensor = inputs) -> float:
            training.optimizer.zero_grad()
            loss = training.loss(training.forward(inputs))
            training.backward(loss)
            return loss.item()

        training.step(compute)


def ahead(training: Training, loader: DataLoader) -> None:
    """Fetch each batch before training on the one before it."""
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        training.train(current)
        current = following
    training.train(current)


def two_losses(training: Training, loader: DataLoader) -> None:
    for inputs in loader:
        training.prepare()
        outputs = training.forward(inputs)
        training.backward(training.loss(outputs), retain_graph=True)
        training.backward(outputs.sum())
        training.step()


def penalty(training: Training, loader: DataLoader) -> None:
    """A gradient penalty: `torch.autograd.grad`, then the loss of its result."""
    for inputs in loader:
        training.prepare()
        inputs = inputs.requires_grad_()
        outputs = training.forward(inputs)
        spend(LOSS_S)
        summed = outputs.sum()
        training.truth.begin(BACKWARD)
        torch.autograd.grad(summed, inputs, retain_graph=True)
        training.truth.end()
        training.backward(outputs.sum())
        training.step()


def teacher(training: Training, loader: DataLoader) -> None:
    """Another model without gradients in each step."""
    other = Model()
    for inputs in loader:
        training.prepare()
        with torch.no_grad():
            training.forward(inputs, other)
        training.backward(training.loss(training.forward(inputs)))
        training.step()


def evaluation(training: Training, loader: DataLoader) -> None:
    """An evaluation after every fifth step, which is overhead."""
    for number, inputs in enumerate(loader, 1):
        training.train(inputs)
        if number % 5 == 0:
            with torch.no_grad():
                for held_out in DataLoader(torch.ones(2 * BATCH_SIZE, 4), BATCH_SIZE):
                    training.model(held_out)


def compiled(training: Training, loader: DataLoader) -> None:
    if not isinstance(training.model, torch._dynamo.OptimizedModule):
        training.model = torch.compile(training.model, backend="eager")
    plain(training, loader)


LOOPS: dict[str, Loop] = {
    "plain": plain,
    "workers": plain,
    "accumulation": accumulation,
    "gan": gan,
    "closure": closure,
    "checkpointed": plain,
    "ahead": ahead,
    "two losses": two_losses,
    "penalty": penalty,
    "teacher": teacher,
    "evaluation": evaluation,
    "compiled": compiled,
}


def main() -> None:
    name = sys.argv[1]
    torch.set_num_threads(1)
    truth = Truth()
    training = Training(truth, is_checkpointed=name == "checkpointed")
    loader = DataLoader(torch.ones(BATCHES * BATCH_SIZE, 4), BATCH_SIZE, num_workers=2 if name == "workers" else 0)
    for _ in range(EPOCHS):
        LOOPS[name](training, loader)
        print(json.dumps(truth.take()), flush=True)


if __name__ == "__main__":
    main()
