"""Training and evaluation, in plain PyTorch. Nothing here measures: `batches` does, as it hands them out."""

import torch

TOGETHER = 1024
"""Steps whose losses become one tensor, and whose rightness is added up: each by itself takes 512 bytes of a GPU."""


class Tally:
    """The loss of each step, and the number of correct answers, kept on the device: only reading them waits for it.

    `count` gives the number of samples in a batch's targets.
    """

    def __init__(self, task, device, count=len):
        self.samples = 0
        self._count = count
        self._task = task
        self._losses, self._last = [], []
        self._right, self._last_right = torch.zeros((), device=device, dtype=torch.long), []
        self._weights = []

    def add(self, loss, outputs, targets):
        self._last.append(loss.detach())
        self._last_right.append(self._task.right(outputs, targets))
        self._weights.append(self._task.weight(targets))
        self.samples += self._count(targets)
        if len(self._last) == TOGETHER:
            self._put_together()

    def losses(self):
        """The loss of each step, as numbers."""
        self._put_together()
        return [loss for losses in self._losses for loss in losses.tolist()]

    def weights(self):
        """How many each step's loss is the mean of."""
        counted = any(isinstance(weight, torch.Tensor) for weight in self._weights[:1])  # on the device, as losses are
        return (torch.stack(self._weights).double() if counted else torch.tensor(self._weights).double()).tolist()

    def last_loss(self):
        """The loss of the last step: whoever asks waits for the device."""
        return (self._last or self._losses[-1])[-1].item()

    def sums(self):
        """What the means are of: how many there were, their loss, and how many of them were right (None: no word)."""
        self._put_together()
        weights = self.weights()
        loss_sum = sum(loss * weight for loss, weight in zip(self.losses(), weights))
        right = None if self._right is None else self._right.item()
        return {"weight": sum(weights), "loss_sum": loss_sum, "right": right}

    def _put_together(self):
        if not self._last:
            return
        self._losses.append(torch.stack(self._last))
        right, self._last, self._last_right = self._last_right, [], []
        self._right = None if right[0] is None else self._right + torch.cat([each.flatten() for each in right]).sum()


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
