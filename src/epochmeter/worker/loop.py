"""Training and evaluation loops in plain PyTorch. Timing is done by the `batches` iterable, not here."""

import torch

CHUNK_STEPS = 1024
"""Steps per chunk: their values are stacked into one tensor, as separate scalars take 512 bytes of GPU memory each."""


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


class EpochStats:
    """Loss and number of correct predictions of each step, kept on the device; only reading them waits for the device.

    `count` returns the number of samples in a batch's targets.
    """

    def __init__(self, task, count=len):
        self.samples = 0  # seen so far
        self._task, self._count = task, count
        self._steps = []  # loss, weight and correct predictions of each step since the last chunk
        self._losses, self._weights, self._correct = [], [], 0

    def add(self, loss, outputs, targets):
        """Add a step: its mean loss, the model's outputs and the targets."""
        self._steps.append((loss.detach(), self._task.weight(targets), self._task.correct(outputs, targets)))
        self.samples += self._count(targets)
        if len(self._steps) == CHUNK_STEPS:
            self._end_chunk()

    def losses(self):
        """Return the mean loss of each step."""
        self._end_chunk()
        return [loss for losses in self._losses for loss in losses.tolist()]

    def weights(self):
        """Return the number of items that each step's loss is the mean of."""
        self._end_chunk()
        return [weight for weights in self._weights for weight in weights.double().tolist()]

    def last_loss(self):
        """Return the loss of the last step; waits for the device."""
        return (self._steps[-1][0] if self._steps else self._losses[-1][-1]).item()

    def totals(self):
        """Return total weight, weighted sum of losses and number of correct predictions (None without accuracy)."""
        weights = self.weights()
        loss_sum = sum(loss * weight for loss, weight in zip(self.losses(), weights))
        correct = None if self._correct is None else int(self._correct)
        return {"weight": sum(weights), "loss_sum": loss_sum, "correct": correct}

    def _end_chunk(self):
        if not self._steps:
            return
        losses, weights, correct = zip(*self._steps)
        self._steps = []
        self._losses.append(torch.stack(losses))
        on_device = isinstance(weights[0], torch.Tensor)
        self._weights.append(torch.stack(weights) if on_device else torch.tensor(weights))
        if correct[0] is None:
            self._correct = None
        else:
            self._correct = self._correct + torch.cat([step.flatten() for step in correct]).sum()
