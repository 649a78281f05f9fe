"""Training and evaluation loops in plain PyTorch. Timing is done by the `batches` iterable, not here."""

import torch

CHUNK_STEPS = 1024
"""Steps per chunk: their losses are stacked into one tensor, as separate scalars take 512 bytes of GPU memory each."""


class EpochStats:
    """Loss and number of correct predictions of each step, kept on the device; only reading them waits for the device.

    `count` returns the number of samples in a batch's targets.

    Attributes:
        samples: Samples seen so far.
    """

    def __init__(self, task, device, count=len):
        self.samples = 0
        self._count = count
        self._task = task
        self._losses, self._last = [], []
        self._correct, self._last_correct = torch.zeros((), device=device, dtype=torch.long), []
        self._weights = []

    def add(self, loss, outputs, targets):
        """Add a step: its mean loss, the model's outputs and the targets."""
        self._last.append(loss.detach())
        self._last_correct.append(self._task.correct(outputs, targets))
        self._weights.append(self._task.weight(targets))
        self.samples += self._count(targets)
        if len(self._last) == CHUNK_STEPS:
            self._concatenate()

    def losses(self):
        """Return the mean loss of each step."""
        self._concatenate()
        return [loss for losses in self._losses for loss in losses.tolist()]

    def weights(self):
        """Return the number of items that each step's loss is the mean of."""
        on_device = any(isinstance(weight, torch.Tensor) for weight in self._weights[:1])  # tensors, like the losses
        return (torch.stack(self._weights).double() if on_device else torch.tensor(self._weights).double()).tolist()

    def last_loss(self):
        """Return the loss of the last step; waits for the device."""
        return (self._last or self._losses[-1])[-1].item()

    def totals(self):
        """Return total weight, weighted sum of losses and number of correct predictions (None without accuracy)."""
        self._concatenate()
        weights = self.weights()
        loss_sum = sum(loss * weight for loss, weight in zip(self.losses(), weights))
        correct = None if self._correct is None else self._correct.item()
        return {"weight": sum(weights), "loss_sum": loss_sum, "correct": correct}

    def _concatenate(self):
        if not self._last:
            return
        self._losses.append(torch.stack(self._last))
        if self._last_correct[0] is None:
            self._correct = None
        else:
            self._correct = self._correct + torch.cat([step.flatten() for step in self._last_correct]).sum()
        self._last, self._last_correct = [], []


def train(model, batches, task, optimizer, stats, autocast, scaler):
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
def evaluate(model, batches, task, stats, autocast):
    """Evaluate one pass, without gradients."""
    model.eval()
    for inputs, targets in batches:
        with autocast:
            outputs = model(inputs)
            loss = task.loss(outputs, targets)
        stats.add(loss, outputs, targets)
