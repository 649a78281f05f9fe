"""Two loaders in one loop: zipped, of which the first is waited for, or one of them once per step by `next`."""

import sys

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth()
model, optimizer = small_model()
loader = DataLoader(Data(40 if kind == "uneven" else 64, truth), 8)
other = DataLoader(Data(64, read_s=0), 8)


def pairs():
    if kind == "next":
        iterator = iter(other)
        for batch in loader:
            yield batch, next(iterator)
    else:
        yield from zip(loader, other)


for _ in range(3):
    with truth.window(partial=False):
        for (inputs, targets), (more, others) in pairs():
            truth.step(len(inputs))
            train_on(model, optimizer, torch.cat([inputs, more]), torch.cat([targets, others]))
truth.write(model)
