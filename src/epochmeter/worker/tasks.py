"""Tasks: example inputs, loss and accuracy."""

from typing import TYPE_CHECKING, Any, Optional, Tuple, Union

import torch
from torch.nn import functional

from epochmeter.shared.problem import input_error
from epochmeter.shared.types import Document

if TYPE_CHECKING:
    from typing import Protocol  # from Python 3.8 on

    class Task(Protocol):
        """A task; docs/extending.md has the meaning of its methods."""

        def example(self, dataset: Document, count: int, generator: torch.Generator) -> Tuple[Any, Any]: ...

        def loss(self, outputs: Any, targets: Any) -> torch.Tensor: ...

        def weight(self, targets: Any) -> Union[int, torch.Tensor]: ...

        def correct(self, outputs: Any, targets: Any) -> Optional[torch.Tensor]: ...


PAD = 0  # padding token; ignored by loss and accuracy


class Classification:
    """Image classification; `auxiliary` is the weight in the loss of each auxiliary output of Inception models.

    It is 0.3 in Szegedy et al., Going deeper with convolutions, CVPR 2015; Inception v3 is commonly trained with 0.4.
    """

    unit = "images"

    def __init__(self, auxiliary: float) -> None:
        self._auxiliary = auxiliary

    def example(self, dataset: Document, count: int, generator: torch.Generator) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return random images (count, channels, size, size) and class indices (count,)."""
        size = dataset["size"]
        images = torch.randn(count, dataset["channels"], size, size, generator=generator)
        return images, torch.randint(dataset["classes"], (count,), generator=generator)

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        if isinstance(outputs, tuple):
            losses = [functional.cross_entropy(output, targets) for output in outputs if output is not None]
            loss: torch.Tensor = losses[0] + self._auxiliary * sum(losses[1:])
            return loss
        return functional.cross_entropy(outputs, targets)

    def weight(self, targets: torch.Tensor) -> int:
        """Return the number of items that the loss is the mean of."""
        return len(targets)

    def correct(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Return which predictions are correct, as a boolean tensor; a task without accuracy returns None."""
        scores: torch.Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
        return scores.argmax(1) == targets


class Regression:
    """Regression by a loss of `torch.nn.functional`, such as `mse_loss`, without accuracy; ValueError without it."""

    def __init__(self, loss: str) -> None:
        if not hasattr(functional, loss):
            losses = sorted(name for name in dir(functional) if name.endswith("_loss"))
            hint = "give one of {}".format(", ".join(losses))
            raise input_error("`task.loss={}` is not valid".format(loss), hint, key="task.loss")
        self.loss = getattr(functional, loss)

    def example(self, dataset: Document, count: int, generator: torch.Generator) -> Tuple[torch.Tensor, torch.Tensor]:
        """Return random inputs (count, features) and targets (count, 1)."""
        inputs = torch.randn(count, dataset["features"], generator=generator)
        return inputs, torch.randn(count, 1, generator=generator)

    def weight(self, targets: torch.Tensor) -> int:
        return len(targets)

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Return None: a regression has no accuracy."""


class Translation:
    """Sequence to sequence, all sequences of one length, padded with `PAD`.

    Inputs are (source, target shifted right by a start token), outputs (N, length, words). Each word is predicted from
    the source and the preceding target words (teacher forcing). Loss and accuracy are per word.

    Args:
        bleu: Whether the trained model translates the validation sources, to be scored by BLEU.
    """

    unit = "tokens"

    def __init__(self, bleu: bool = False) -> None:
        self.bleu = bleu

    def example(
        self, dataset: Document, count: int, generator: torch.Generator
    ) -> Tuple[Tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return random ((source, shifted target), target), each (count, length)."""
        shape = (count, dataset["length"])
        source, shifted, target = (torch.randint(1, dataset["words"], shape, generator=generator) for _ in range(3))
        return (source, shifted), target

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PAD)

    def weight(self, targets: torch.Tensor) -> torch.Tensor:
        return (targets != PAD).sum()

    def correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(2) == targets) & (targets != PAD)
