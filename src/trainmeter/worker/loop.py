"""Training and evaluation, in plain PyTorch. Nothing here measures: `batches` does, as it hands them out."""

import torch

TOGETHER = 1024
"""Losses that become one tensor: each by itself takes 512 bytes of a GPU."""


class Tally:
    """The loss of each step, and how much was right, kept on the device: reading them is what waits for it."""

    def __init__(self, task, device):
        self.samples = 0
        self._task = task
        self._losses, self._last = [], []
        self._weights = []
        self._right = torch.zeros((), device=device, dtype=torch.long)

    def add(self, loss, outputs, targets):
        self._last.append(loss.detach())
        if len(self._last) == TOGETHER:
            self._losses.append(torch.stack(self._last))
            self._last = []
        self._weights.append(self._task.weight(targets))
        right = self._task.right(outputs, targets)
        if right is None:
            self._right = None
        else:
            self._right += right
        self.samples += len(targets)

    def losses(self):
        """The loss of each step, as numbers."""
        last = [torch.stack(self._last)] if self._last else []
        return [loss for losses in (*self._losses, *last) for loss in losses.tolist()]

    def weights(self):
        """How many each step's loss is the mean of."""
        counted = any(isinstance(weight, torch.Tensor) for weight in self._weights[:1])  # on the device, as losses are
        return (torch.stack(self._weights).double() if counted else torch.tensor(self._weights).double()).tolist()

    def last_loss(self):
        """The loss of the last step: whoever asks waits for the device."""
        return (self._last or self._losses[-1])[-1].item()

    def sums(self):
        """What the means are of: how many there were, their loss, and how many of them were right (None: no word)."""
        weights = self.weights()
        loss_sum = sum(loss * weight for loss, weight in zip(self.losses(), weights))
        right = None if self._right is None else self._right.item()
        return {"weight": sum(weights), "loss_sum": loss_sum, "right": right}


def train(model, batches, task, optimizer, tally, autocast, scaler):
    """One pass: each batch's loss is followed down its gradient by one step of the optimizer."""
    model.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        with autocast:
            outputs = model(inputs)
            loss = task.loss(outputs, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        tally.add(loss, outputs, targets)


@torch.no_grad()
def evaluate(model, batches, task, tally, autocast):
    """One pass without learning."""
    model.eval()
    for inputs, targets in batches:
        with autocast:
            outputs = model(inputs)
            loss = task.loss(outputs, targets)
        tally.add(loss, outputs, targets)
