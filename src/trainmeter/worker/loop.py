"""Training and evaluation, in plain PyTorch. Nothing here measures: `batches` does, as it hands them out."""

import torch


class Tally:
    """Loss and accuracy of the samples seen, added up on the device: reading them is what waits for it."""

    def __init__(self, device):
        self.samples = 0
        self.loss_sum = torch.zeros((), device=device, dtype=torch.double)
        self.correct = torch.zeros((), device=device, dtype=torch.long)

    def add(self, loss, outputs, targets):
        self.samples += len(targets)
        self.loss_sum += loss.detach() * len(targets)
        self.correct += (outputs.detach().argmax(1) == targets).sum()

    def means(self):
        """Loss and accuracy a sample, of which there must be one."""
        return self.loss_sum.item() / self.samples, self.correct.item() / self.samples


def train(model, batches, criterion, optimizer, tally):
    """One pass: each batch's loss is followed down its gradient by one step of the optimizer."""
    model.train()
    for inputs, targets in batches:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        tally.add(loss, outputs, targets)


@torch.no_grad()
def evaluate(model, batches, criterion, tally):
    """One pass without learning."""
    model.eval()
    for inputs, targets in batches:
        outputs = model(inputs)
        tally.add(criterion(outputs, targets), outputs, targets)
