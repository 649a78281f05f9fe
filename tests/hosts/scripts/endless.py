"""Endless loops: a generator of passes, a loader that restarts itself (`loader`), an endless sampler with a limit per
epoch (`sampler`), and `itertools.cycle` (`cycle`), whose later steps are noted.
"""

import itertools
import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth("optimizer steps outside of measured epochs" if kind == "cycle" else "")
model, optimizer = small_model()
data = Data(64, truth)


class Restarting(DataLoader):
    def __iter__(self):
        while True:
            yield from super().__iter__()


def passes(loader):
    while True:
        yield from loader


loader = Restarting(data, 8) if kind == "loader" else DataLoader(data, 8)
iterator = None


def begun():
    if kind == "cycle":
        return itertools.cycle(loader)
    return iter(loader) if kind == "loader" else passes(loader)


def train(steps):
    global iterator
    iterator = iterator or begun()
    for _ in range(steps):
        inputs, targets = next(iterator)
        if truth.open:
            truth.step(len(inputs))
        train_on(model, optimizer, inputs, targets)


for epoch, steps in enumerate([8, 8, 4]):
    if kind == "cycle" and epoch:
        train(steps)
    else:
        with truth.window(partial=steps < 8):
            train(steps)
truth.write(model)
