"""A script that trains a model by name for two epochs, and prints a hash of its losses and weights.

The models have inputs of which no gradient is computed, and a batch of 2 samples.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import torch
import torchvision
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

BATCH, STEPS = 2, 5
POSITIONS, WIDTH, HEADS, LAYERS, WORDS = 48, 96, 4, 3, 200  # of the language model


class Decoder(nn.Module):
    """A decoder layer with attention by `scaled_dot_product_attention`: (N, positions, width) -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.combine = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        split = self.project(self.norms[0](values)).view(len(values), POSITIONS, 3, HEADS, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.combine(attended.transpose(1, 2).reshape(values.shape))
        return values + self.narrow(functional.gelu(self.widen(self.norms[1](values))))


class Language(nn.Module):
    """A language model as GPT, whose output layer has the weights of the embedding: (N, positions) -> (N, words)."""

    def __init__(self, *, repeats: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Decoder() for _ in range(LAYERS))
        self.repeats = repeats

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        values = self.words(words)
        for layer in self.layers:
            values = checkpoint(layer, values, use_reentrant=False) if self.repeats else layer(values)
        return values @ self.words.weight.t()


class Last(nn.Module):
    """A recurrent layer that returns its output only."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(values)[0]
        return output


@torch.library.custom_op("benchmark::product", mutates_args=())
def product(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (first @ second).float()


class Teacher(nn.Module):
    """A linear layer, and two fixed teachers: a custom operator, and products in inference mode, both in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.weights = nn.Linear(64, 8), torch.randn(64, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            first = product(values, self.weights)
            with torch.inference_mode():
                second = torch.einsum("ij,jk->ik", values, self.weights)
        return self.student(values) * first + second.clone().float()


IMAGE = (3, 64, 64)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)), (32,)),
    "ResNet-50": (torchvision.models.resnet50, IMAGE),
    "depthwise convolution": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), (16, 20, 20)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1), (8, 10, 10)),
    "ViT-B/16": (lambda: torchvision.models.vit_b_16(image_size=64), IMAGE),
    "GPT": (Language, (POSITIONS,)),
    "GPT, checkpointed": (lambda: Language(repeats=True), (POSITIONS,)),
    "LSTM, 2 layers": (lambda: Last(nn.LSTM(20, 24, 2, batch_first=True)), (15, 20)),
    "embedding": (lambda: nn.Embedding(WORDS, WIDTH), (POSITIONS,)),
    "MLP, compiled": (lambda: torch.compile(MODELS["MLP"][0]()), (32,)),
    "teachers in bfloat16": (Teacher, (64,)),
}
"""Name -> the model, and the shape of a sample."""


def sample(shape: tuple[int, ...]) -> torch.Tensor:
    """Return a random sample: words for a language model or an embedding."""
    return torch.randint(WORDS, shape) if shape == (POSITIONS,) else torch.randn(shape)


def main(name: str) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader([sample(shape) for _ in range(BATCH * STEPS)], BATCH, shuffle=True)
    values = []
    for _ in range(2):
        for inputs in loader:
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
    weights = [parameter.detach().double().flatten() for parameter in model.parameters()]
    text = repr(values).encode() + torch.cat(weights).numpy().tobytes()
    print(hashlib.sha256(text).hexdigest())


if __name__ == "__main__":
    main(sys.argv[1])
