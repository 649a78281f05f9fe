"""FLOPs that `src/measure.py` counts in scripts, against counts by hand, and results with and without counting."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from common import flops_script
from common.flops_script import BATCH, HEADS, IMAGE, LAYERS, MODELS, POSITIONS, WIDTH, WORDS
from common.jobs import measured
from common.output import print_table, sized
from torch.utils.flop_counter import FlopCounterMode

SCRIPT = str(Path(flops_script.__file__))
SHORT = ("MLP", "embedding")
TITLE = "FLOPs of training on a sample, of scripts"
COLUMNS = ("model", "by hand", "measure.py", "difference", "FlopCounterMode", "not counted", "same results")
OTHERS = ("MLP, compiled", "teachers in bfloat16")
"""Models with operators that cannot be counted."""


def resnet50(size: int) -> Iterator[int]:
    """Yield the multiplications of each layer for an image, the first convolution first: K. He et al., 2016, table 1.

    The stride is in the second convolution of a block, as in torchvision.
    """
    size //= 2
    yield size**2 * 64 * 3 * 49
    size, channels = size // 2, 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            before, size = size, size // 2 if width > 64 and not block else size
            yield before**2 * channels * width
            yield size**2 * width * width * 9
            yield size**2 * width * 4 * width
            if not block:
                yield size**2 * channels * 4 * width
            channels = 4 * width
    yield channels * 1000


def transformer(positions: int, width: int, layers: int, heads: int) -> tuple[int, int]:
    """Return the multiplications of all linear layers, and of the attention to all pairs of positions."""
    return layers * positions * 12 * width**2, layers * heads * positions**2 * (width // heads)


def by_hand() -> dict[str, int]:
    """Return the FLOPs of training on a sample.

    A linear layer needs as many for the gradient of its weights, and of its inputs unless they are the model's.
    Attention has two products, and five in its backward pass, with the scores again. Checkpointing repeats a layer up
    to its last linear layer, whose output the backward pass does not need.
    """
    first, *others = resnet50(IMAGE[1])
    patches, vit = (IMAGE[1] // 16) ** 2, transformer((IMAGE[1] // 16) ** 2 + 1, 768, 12, 12)
    linear, attention = transformer(POSITIONS, WIDTH, LAYERS, HEADS)
    words = POSITIONS * WIDTH * WORDS
    gpt = 3 * (linear + words) + 7 * attention
    lstm = [15 * 4 * 24 * (inputs + 24) for inputs in (20, 24)]
    products = {
        "MLP": 2 * 32 * 64 + 3 * 64 * 10,
        "ResNet-50": 2 * first + 3 * sum(others),
        "depthwise convolution": 2 * 16 * 20**2 * 9,
        "transposed convolution": 2 * 10**2 * 8 * 12 * 16,
        "ViT-B/16": 2 * patches * 768 * 3 * 256 + 3 * (vit[0] + 768 * 1000) + 7 * vit[1],
        "GPT": gpt,
        "GPT, checkpointed": gpt + linear * 8 // 12 + 2 * attention,
        "LSTM, 2 layers": 3 * sum(lstm),
        "embedding": 0,
        "MLP, compiled": 2 * 32 * 64 + 3 * 64 * 10,
        "teachers in bfloat16": 2 * 64 * 8 + 2 * 64 * 8,
    }
    return {name: 2 * count for name, count in products.items()}


def by_torch(name: str) -> float:
    """Return the FLOPs per sample by torch's own counter."""
    make, shape = MODELS[name]
    model, inputs = make(), torch.stack([flops_script.sample(shape) for _ in range(BATCH)])
    with FlopCounterMode(display=False) as counter:
        model(inputs).square().mean().backward()
    return counter.get_total_flops() / BATCH


def row(name: str) -> list[str]:
    """Return the row of a model: its script is run bare and measured."""
    bare = subprocess.run([sys.executable, SCRIPT, name], check=True, capture_output=True, text=True)
    record, output = measured("measure.flops=true", SCRIPT, name)
    step, hand = record.run()["training"]["step"], by_hand()[name]
    flops = step.get("flops", 0) / BATCH
    missing = ", ".join(step.get("not_counted", ())) or "-"
    torch_flops = "-" if name in OTHERS else f"{by_torch(name):,.0f}"
    equal = "yes" if bare.stdout.strip() in output else "NO"
    return [name, f"{hand:,}", f"{flops:,.0f}", f"{flops - hand:+,.0f}", torch_flops, missing, equal]


def main() -> None:
    print_table(TITLE, COLUMNS, [row(name) for name in sized(tuple(MODELS), SHORT)])


if __name__ == "__main__":
    main()
