"""Training and evaluation loops in plain PyTorch. Timing is done by the `batches` iterable, not here."""

from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterable, List, NamedTuple, Optional, Tuple, Union

import torch

if TYPE_CHECKING:
    from epochmeter.worker.tasks import Task

CHUNK_STEPS = 1024
"""Steps per chunk: their values are stacked into one tensor, as separate scalars take 512 bytes of GPU memory each."""


def train(
    model: torch.nn.Module,
    batches: Iterable[Any],
    task: "Task",
    optimizer: torch.optim.Optimizer,
    stats: "EpochStats",
    autocast: ContextManager[object],
    scaler: "torch.amp.GradScaler",
) -> None:
    """Train one epoch: forward pass, backward pass and optimizer step for each batch."""
    model.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        with autocast:
            outputs = model(inputs)
            loss = task.loss(outputs, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        stats.add(loss, outputs, targets)


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    batches: Iterable[Any],
    task: "Task",
    stats: "EpochStats",
    autocast: ContextManager[object],
) -> None:
    """Evaluate one pass, without gradients."""
    model.eval()
    for inputs, targets in batches:
        with autocast:
            outputs = model(inputs)
            loss = task.loss(outputs, targets)
        stats.add(loss, outputs, targets)


class Totals(NamedTuple):
    weight: float  # number of items that the loss is the mean of
    loss_sum: float  # weighted sum of the losses
    correct: Optional[int]  # number of correct predictions; None without accuracy


class EpochStats:
    """Loss and number of correct predictions of each step, kept on the device; only reading them waits for the device.

    `count` returns the number of samples in a batch's targets.
    """

    def __init__(self, task: "Task", count: Callable[[Any], int] = len) -> None:
        self.samples = 0  # seen so far
        self._task, self._count = task, count
        self._steps: List[Tuple[torch.Tensor, Union[int, torch.Tensor], Optional[torch.Tensor]]] = []
        """Loss, weight and correct predictions of each step since the last chunk."""
        self._losses: List[torch.Tensor] = []
        self._weights: List[torch.Tensor] = []
        self._correct: Union[int, torch.Tensor, None] = 0

    def add(self, loss: torch.Tensor, outputs: Any, targets: Any) -> None:
        """Add a step: its mean loss, the model's outputs and the targets."""
        self._steps.append((loss.detach(), self._task.weight(targets), self._task.correct(outputs, targets)))
        self.samples += self._count(targets)
        if len(self._steps) == CHUNK_STEPS:
            self._end_chunk()

    def losses(self) -> List[float]:
        """Return the mean loss of each step."""
        self._end_chunk()
        return [loss for losses in self._losses for loss in losses.tolist()]

    def weights(self) -> List[float]:
        """Return the number of items that each step's loss is the mean of."""
        self._end_chunk()
        return [weight for weights in self._weights for weight in weights.double().tolist()]

    def last_loss(self) -> float:
        """Return the loss of the last step; waits for the device."""
        return (self._steps[-1][0] if self._steps else self._losses[-1][-1]).item()

    def totals(self) -> Totals:
        """Return the sums over all steps."""
        weights = self.weights()
        loss_sum = sum(loss * weight for loss, weight in zip(self.losses(), weights))
        correct = None if self._correct is None else int(self._correct)
        return Totals(sum(weights), loss_sum, correct)

    def _end_chunk(self) -> None:
        if not self._steps:
            return
        losses, weights, correct = zip(*self._steps)
        self._steps = []
        self._losses.append(torch.stack(losses))
        on_device = isinstance(weights[0], torch.Tensor)
        self._weights.append(torch.stack(weights) if on_device else torch.tensor(weights))
        if correct[0] is None or self._correct is None:
            self._correct = None
        else:
            self._correct = self._correct + torch.cat([step.flatten() for step in correct]).sum()
