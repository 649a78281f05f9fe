"""Activation checkpointing, an averaged model, and a saved checkpoint per epoch."""

import io
import sys

import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model

truth = Truth()
model, optimizer = small_model()
average = torch.optim.swa_utils.AveragedModel(model)
loader = DataLoader(Data(64, truth), 8)
for _ in range(3):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            outputs = checkpoint(model, inputs, use_reentrant=sys.argv[1] == "reentrant")
            optimizer.zero_grad()
            (outputs - targets).pow(2).mean().backward() if outputs.requires_grad else None
            optimizer.step()
            average.update_parameters(model)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO())
truth.write(model, average)
