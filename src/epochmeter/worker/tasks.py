"""Tasks: example inputs, loss and accuracy."""

import torch
from torch.nn import functional

PAD = 0  # padding token; ignored by loss and accuracy


class Classification:
    """Image classification; `auxiliary` is the weight in the loss of each auxiliary output of Inception models.

    It is 0.3 in Szegedy et al., Going deeper with convolutions, CVPR 2015; Inception v3 is commonly trained with 0.4.
    """

    unit = "images"

    def __init__(self, auxiliary):
        self._auxiliary = auxiliary

    def example(self, dataset, count, generator):
        """Return random images (count, channels, size, size) and class indices (count,)."""
        size = dataset["size"]
        images = torch.randn(count, dataset["channels"], size, size, generator=generator)
        return images, torch.randint(dataset["classes"], (count,), generator=generator)

    def loss(self, outputs, targets):
        if isinstance(outputs, tuple):
            losses = [functional.cross_entropy(output, targets) for output in outputs if output is not None]
            return losses[0] + self._auxiliary * sum(losses[1:])
        return functional.cross_entropy(outputs, targets)

    def weight(self, targets):
        """Return the number of items that the loss is the mean of."""
        return len(targets)

    def correct(self, outputs, targets):
        """Return which predictions are correct, as a boolean tensor; a task without accuracy returns None."""
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        return outputs.argmax(1) == targets


class Regression:
    """Regression by a loss of `torch.nn.functional`, such as `mse_loss`, without accuracy; ValueError without it."""

    def __init__(self, loss):
        if not hasattr(functional, loss):
            losses = sorted(name for name in dir(functional) if name.endswith("_loss"))
            raise ValueError("task.loss={}: give one of {}.".format(loss, ", ".join(losses)))
        self.loss = getattr(functional, loss)

    def example(self, dataset, count, generator):
        """Return random inputs (count, features) and targets (count, 1)."""
        inputs = torch.randn(count, dataset["features"], generator=generator)
        return inputs, torch.randn(count, 1, generator=generator)

    def weight(self, targets):
        return len(targets)

    def correct(self, outputs, targets):
        """Return None: a regression has no accuracy."""


class Translation:
    """Sequence to sequence, all sequences of one length, padded with `PAD`.

    Inputs are (source, target shifted right by a start token), outputs (N, length, words). Each word is predicted from
    the source and the preceding target words (teacher forcing). Loss and accuracy are per word.
    """

    unit = "tokens"

    def example(self, dataset, count, generator):
        """Return random ((source, shifted target), target), each (count, length)."""
        shape = (count, dataset["length"])
        source, shifted, target = (torch.randint(1, dataset["words"], shape, generator=generator) for _ in range(3))
        return (source, shifted), target

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PAD)

    def weight(self, targets):
        return (targets != PAD).sum()

    def correct(self, outputs, targets):
        return (outputs.argmax(2) == targets) & (targets != PAD)
