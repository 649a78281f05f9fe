"""Training scripts that wait for their data.

`python stalled_script.py KIND EPOCHS WORKERS LOAD COMPUTE [pairs]`: seconds per batch to load, by sleeping, and to
compute in addition to the model. With `pairs`, each epoch is trained again on the same batches in memory, which is the
real removal of the stall; the script prints both times in seconds, as JSON.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from PIL import Image
from pipeline import spend
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

STEPS, BATCH = 16, 4
Make = Callable[[int], Any]


class Slow(Dataset):
    """Batches that take a time to load."""

    def __init__(self, make: Make, load_s: float) -> None:
        self.make, self.load_s = make, load_s

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, number: int) -> Any:
        time.sleep(self.load_s)
        return self.make(number)


class Stream(IterableDataset):
    """The same, without a stated length."""

    def __init__(self, batches: Dataset) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return (self.batches[number] for number in range(STEPS))


def images(size: int) -> Make:
    return lambda number: (torch.randn(BATCH, 3, size, size), torch.arange(BATCH) % 10)


def tokens(number: int) -> dict[str, Any]:
    lengths = torch.randint(8, 32, (BATCH,))
    return {
        "input_ids": torch.randint(0, 100, (BATCH, 32)),
        "mask": torch.arange(32) >= lengths[:, None],
        "names": ["a"],
    }


def pictures(number: int) -> list[tuple[Image.Image, int]]:
    return [(Image.new("RGB", (64, 64), (number, index, 0)), index) for index in range(BATCH)]


def sentences(number: int) -> Any:
    return pack_sequence([torch.randn(20 - index, 32) for index in range(BATCH)])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.encode = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.encode(self.embed(batch["input_ids"]), src_key_padding_mask=batch["mask"]).mean(2)


def convolution() -> nn.Module:
    layers = nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def normalized(batch: Any) -> torch.Tensor:
    return batch[0].sub_(batch[0].mean()).div_(batch[0].std())


def to_tensor(batch: list[tuple[Image.Image, int]]) -> torch.Tensor:
    pixels = [torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8) for image, _ in batch]
    return torch.stack(pixels).view(len(batch), 64, 64, 3).permute(0, 3, 1, 2).float() / 255


LAST = nn.Flatten()
KINDS: dict[str, tuple[Make, Callable[[], nn.Module], Callable[[Any], Any]]] = {
    "images": (images(32), convolution, lambda batch: batch[0]),
    "images, evaluation": (images(32), convolution, lambda batch: batch[0]),
    "images, accumulation": (images(32), convolution, lambda batch: batch[0]),
    "stream": (images(32), convolution, lambda batch: batch[0]),
    "changed in place": (images(96), convolution, normalized),
    "dictionaries": (tokens, Words, lambda batch: batch),
    "PIL images": (pictures, convolution, to_tensor),
    "packed sequences": (sentences, lambda: nn.LSTM(32, 64), lambda batch: batch),
}
"""A batch by its number, the model, and its input."""


class Training:
    """The model of a kind of script, which trains on batches."""

    def __init__(self, kind: str, compute_s: float) -> None:
        torch.manual_seed(0)
        _, build, self.prepare = KINDS[kind]
        self.compute_s, self.model = compute_s, build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.every = 4 if kind == "images, accumulation" else 1

    def epoch_s(self, batches: Iterable[Any]) -> float:
        """Train on the batches, and return the time."""
        begun = time.perf_counter()
        for number, batch in enumerate(batches, 1):
            result = self.model(self.prepare(batch))
            (result[1][0] if isinstance(result, tuple) else result).square().mean().backward()
            if number % self.every == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.compute_s:
                spend(self.compute_s)
        return time.perf_counter() - begun

    def evaluate(self, batches: Iterable[Any]) -> None:
        with torch.no_grad():
            for batch in batches:
                self.model(self.prepare(batch))


def make_loader(kind: str, workers: int, load_s: float) -> DataLoader:
    batches: Dataset = Slow(KINDS[kind][0], load_s)
    data = Stream(batches) if kind == "stream" else batches
    return DataLoader(data, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


def main() -> None:
    kind, epochs, workers, load_s, compute_s = sys.argv[1], *map(int, sys.argv[2:4]), *map(float, sys.argv[4:6])
    training, loader = Training(kind, compute_s), make_loader(kind, workers, load_s)
    in_memory = [KINDS[kind][0](number) for number in range(STEPS)]
    for _ in range(epochs):
        loaded_s = training.epoch_s(loader)
        if sys.argv[6:] == ["pairs"]:
            batches = copy.deepcopy(in_memory)  # the script may change them
            print(json.dumps([loaded_s, training.epoch_s(batches)]), flush=True)
        if kind == "images, evaluation":
            training.evaluate(loader)


if __name__ == "__main__":
    main()
