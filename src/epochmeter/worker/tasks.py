"""Tasks: what a batch looks like, what a model loses on it, and how much of its answer is right."""

import torch
from torch.nn import functional

PAD = 0
"""The token that fills a sequence up to its length, and counts for nothing."""


class Classification:
    """A class for each image.

    Models of the Inception family answer with auxiliary outputs too while they train, each of which adds its loss,
    weighed by `auxiliary`, in the loss that is told of training (Szegedy et al., Going deeper with convolutions, CVPR
    2015, where it is 0.3; Inception v3 is commonly trained with 0.4).
    """

    def __init__(self, auxiliary):
        self._auxiliary = auxiliary

    def example(self, dataset, count, numbers):
        """`count` samples of the dataset's shape, drawn from the generator `numbers`: (inputs, targets)."""
        size = dataset["size"]
        images = torch.randn(count, dataset["channels"], size, size, generator=numbers)
        return images, torch.randint(dataset["classes"], (count,), generator=numbers)

    def loss(self, outputs, targets):
        """Mean over the samples."""
        if isinstance(outputs, tuple):
            losses = [functional.cross_entropy(each, targets) for each in outputs if each is not None]
            return losses[0] + self._auxiliary * sum(losses[1:])
        return functional.cross_entropy(outputs, targets)

    def weight(self, targets):
        """How many there are that the loss is the mean of."""
        return len(targets)

    def right(self, outputs, targets):
        """Which of them are answered rightly."""
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        return outputs.argmax(1) == targets


class Regression:
    """Numbers from numbers; nothing is right or wrong."""

    def __init__(self, loss):
        if not hasattr(functional, loss):
            known = sorted(name for name in dir(functional) if name.endswith("_loss"))
            raise ValueError("task.loss={}: give one of {}.".format(loss, ", ".join(known)))
        self._loss = getattr(functional, loss)

    def example(self, dataset, count, numbers):
        inputs = torch.randn(count, dataset["features"], generator=numbers)
        return inputs, torch.randn(count, 1, generator=numbers)

    def loss(self, outputs, targets):
        return self._loss(outputs, targets)

    def weight(self, targets):
        return len(targets)

    def right(self, outputs, targets):
        return None


class Translation:
    """A sequence from a sequence, all of one length, filled up by `PAD`.

    Inputs are (source, target begun by a start token), outputs (N, length, words): each word is predicted from the
    source and the right words before it. Loss and rightness are of words.
    """

    def example(self, dataset, count, numbers):
        shape = (count, dataset["length"])
        source, begun, target = (torch.randint(1, dataset["words"], shape, generator=numbers) for _ in range(3))
        return (source, begun), target

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PAD)

    def weight(self, targets):
        return (targets != PAD).sum()

    def right(self, outputs, targets):
        return (outputs.argmax(2) == targets) & (targets != PAD)
