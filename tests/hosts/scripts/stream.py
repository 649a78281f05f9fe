"""An iterable dataset without length: a pass that ends, and an endless one with an epoch per 500 steps (`endless`)."""

import sys
import time

import torch
from torch.utils.data import DataLoader, IterableDataset
from truth import Truth, small_model

is_endless = sys.argv[1] == "endless"
truth = Truth()
model, optimizer = small_model()


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(10**9 if is_endless else 64):
            time.sleep(0.0005)
            yield torch.ones(8), torch.ones(1)


loader = DataLoader(Stream(), 8 if not is_endless else 2)


def train(iterator, steps):
    for _ in range(steps):
        with truth.waiting():
            inputs, targets = next(iterator)
        truth.step(len(inputs))
        optimizer.zero_grad()
        (model(inputs) - targets).pow(2).mean().backward()
        optimizer.step()


if is_endless:
    iterator = iter(loader)
    for steps in (500, 500, 100):
        with truth.window(partial=steps < 500):
            train(iterator, steps)
else:
    for _ in range(3):
        with truth.window():
            iterator = iter(loader)
            train(iterator, 8)
            print(next(iterator, None))
truth.write(model)
