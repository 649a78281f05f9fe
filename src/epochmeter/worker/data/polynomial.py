"""Polynomial regression data, as in PyTorch's own example: drawn from a seed and kept in memory."""

from typing import Any, Callable, Tuple

import torch

from epochmeter.shared.types import Document


class Polynomial:
    """`count` training samples and a fifth as many for validation: (powers of x, y = w . powers + b).

    x, w / 5 and b / 5 are standard normal; w and b are the same for both splits.
    """

    def __init__(
        self,
        folder: object,
        split: str,
        transform: Callable[[torch.Tensor], Any],
        count: int,
        features: int,
        seed: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        weights, bias = 5 * torch.randn(features, generator=generator), 5 * torch.randn((), generator=generator)
        if split != "train":
            generator, count = torch.Generator().manual_seed(seed + 1), max(1, count // 5)
        self._x = torch.randn(count, generator=generator)
        self._y = (raise_to_powers(self._x, features) @ weights + bias).unsqueeze(1)
        self._transform = transform

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Tuple[Any, torch.Tensor]:
        return self._transform(self._x[index]), self._y[index]


def powers(dataset: Document, split: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: raise_to_powers(x, dataset["features"])


def raise_to_powers(x: torch.Tensor, features: int) -> torch.Tensor:
    """Return the powers 1 to `features` of x: (...) -> (..., features)."""
    return torch.stack([x**power for power in range(1, features + 1)], dim=-1)
