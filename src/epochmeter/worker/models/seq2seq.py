"""Recurrent encoder and decoder with attention.

The encoder is bidirectional, and the decoder starts from its last backward state: Bahdanau et al., Neural machine
translation by jointly learning to align and translate, ICLR 2015. Attention is global with the score `general`, after
the decoder's cells: Luong et al., Effective approaches to attention-based neural machine translation, EMNLP 2015.
The attention is not fed back (no input feeding), so that the decoder is one call over all words.
"""

from typing import Tuple, Union

import torch
from torch import nn

from epochmeter.shared.problem import input_error
from epochmeter.worker.tasks import PAD

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


class Seq2Seq(nn.Module):
    """(source, target shifted right by a start token), both (N, length) -> word scores, (N, length, words)."""

    def __init__(self, words: int, cell: str, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        if cell not in CELLS or width % 2:  # half of the width for each direction of the encoder
            message = "`model.cell={} model.width={}` is not valid".format(cell, width)
            raise input_error(message, "give model.cell=gru or lstm, and an even model.width")
        between = dropout if layers > 1 else 0
        self.layers = layers
        self.source = nn.Embedding(words, width, padding_idx=PAD)
        self.target = nn.Embedding(words, width, padding_idx=PAD)
        self.encoder = CELLS[cell](width, width // 2, layers, batch_first=True, dropout=between, bidirectional=True)
        self.bridge = nn.Linear(width // 2, layers * width)
        self.decoder = CELLS[cell](width, width, layers, batch_first=True, dropout=between)
        self.score = nn.Linear(width, width, bias=False)
        self.attended = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, words)

    def forward(self, inputs: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        source, shifted = inputs
        encoded, _ = self.encoder(self.dropout(self.source(source)))
        states, _ = self.decoder(self.dropout(self.target(shifted)), self._begin(encoded))
        scores = torch.bmm(self.score(states), encoded.transpose(1, 2))
        weights = torch.softmax(scores.masked_fill((source == PAD).unsqueeze(1), float("-inf")), dim=2)
        context = torch.bmm(weights, encoded)
        attended = torch.tanh(self.attended(torch.cat([context, states], dim=2)))
        word_scores: torch.Tensor = self.out(self.dropout(attended))
        return word_scores

    def _begin(self, encoded: torch.Tensor) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        """The decoder's initial state, from the encoder's backward state at the first word, after the padding."""
        backward = encoded[:, 0, encoded.shape[2] // 2 :]
        hidden = torch.tanh(self.bridge(backward)).view(len(backward), self.layers, -1).transpose(0, 1).contiguous()
        return (hidden, torch.zeros_like(hidden)) if isinstance(self.decoder, nn.LSTM) else hidden
