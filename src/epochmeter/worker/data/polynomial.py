"""A polynomial's values, as PyTorch's own example of a regression has them, made by a seed and held in memory."""

import torch


class Polynomial:
    """`count` samples to train on, a fifth as many to validate with: (powers of x, y = w . powers + b).

    x, w / 5 and b / 5 are normal, w and b the same for both splits; there is a power of x for each of `features`,
    from the first on, which `transform` makes of x.
    """

    def __init__(self, folder, split, transform, count, features, seed):
        numbers = torch.Generator().manual_seed(seed)
        weights, bias = 5 * torch.randn(features, generator=numbers), 5 * torch.randn((), generator=numbers)
        if split == "train":
            self._x = torch.randn(count, generator=numbers)
        else:
            self._x = torch.randn(max(1, count // 5), generator=torch.Generator().manual_seed(seed + 1))
        self._y = (raised(self._x, features) @ weights + bias).unsqueeze(1)
        self._transform = transform

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        return self._transform(self._x[index]), self._y[index]


def powers(dataset, split):
    """What makes a number its powers, as many as the dataset has `features`: its preprocessing."""
    return lambda x: raised(x, dataset["features"])


def raised(x, features):
    """(...) -> (..., features): x, its square, and so on."""
    return torch.stack([x**power for power in range(1, features + 1)], dim=-1)
