"""Transformer from torch's modules with sinusoidal positions: Vaswani et al., Attention is all you need, NIPS 2017."""

import inspect
import math
from typing import Dict, Tuple

import torch
from torch import nn

from epochmeter.shared.problem import input_error
from epochmeter.worker.tasks import PAD

CAUSAL_OPTIONS: Dict[str, bool] = (
    {"tgt_is_causal": False} if "tgt_is_causal" in inspect.signature(nn.Transformer.forward).parameters else {}
)
"""Keeps newer versions from testing in each step whether the mask is causal, which waits for the device."""


class Transformer(nn.Module):
    """(source, target shifted right by a start token), both (N, length) -> word scores, (N, length, words)."""

    positions: torch.Tensor
    later: torch.Tensor

    def __init__(
        self, words: int, length: int, width: int, heads: int, layers: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            hint = "give a multiple of twice the model.heads={}".format(heads)
            raise input_error("`model.width={}` is not valid".format(width), hint, key="model.width")
        self.attention = {"layers": 2 * layers, "width": width, "words": words}  # of encoder and decoder
        self.source = nn.Embedding(words, width, padding_idx=PAD)
        self.target = nn.Embedding(words, width, padding_idx=PAD)
        for embedding in (self.source, self.target):
            nn.init.normal_(embedding.weight, std=width**-0.5)
            with torch.no_grad():
                embedding.weight[PAD] = 0
        self.register_buffer("positions", sinusoids(length, width), persistent=False)
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(width, heads, layers, layers, hidden, dropout, batch_first=True)
        # Nested tensors (evaluation without padding) are supported by few devices and change shapes.
        self.transformer.encoder.enable_nested_tensor = self.transformer.encoder.use_nested_tensor = False
        self.out = nn.Linear(width, words)

    def forward(self, inputs: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        source, shifted = inputs
        length = shifted.shape[1]
        padding = source == PAD
        states = self.transformer(
            self._with_positions(self.source(source)),
            self._with_positions(self.target(shifted)),
            tgt_mask=self.later[:length, :length],  # padding is last: no word attends to it
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            **CAUSAL_OPTIONS,
        )
        word_scores: torch.Tensor = self.out(states)
        return word_scores

    def _with_positions(self, words: torch.Tensor) -> torch.Tensor:
        """Return scaled word embeddings with their positions added."""
        states: torch.Tensor = self.dropout(words * math.sqrt(words.shape[2]) + self.positions[: words.shape[1]])
        return states


def sinusoids(length: int, width: int) -> torch.Tensor:
    """Return (length, width) positional encodings: alternating sines and cosines, wavelengths 2 pi to 10000 * 2 pi."""
    position = torch.arange(length, dtype=torch.float).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float) * (-math.log(10000.0) / width))
    return torch.stack([torch.sin(position * frequency), torch.cos(position * frequency)], dim=2).flatten(1)
