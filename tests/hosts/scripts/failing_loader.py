"""The dataset fails in the first pass while a variable holds its iterator; a second pass is complete."""

import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on


class Failing(Data):
    failures = 1

    def item(self, index):
        if index == 40 and Failing.failures:
            Failing.failures -= 1
            raise ValueError("bad sample")
        return super().item(index)


truth = Truth()
model, optimizer = small_model()
loader = DataLoader(Failing(64, truth), 8)
with truth.window():
    iterator = iter(loader)
    try:
        while True:
            inputs, targets = next(iterator)
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
    except ValueError as error:
        print("failed:", error)
with truth.window():
    for inputs, targets in loader:
        truth.step(len(inputs))
        train_on(model, optimizer, inputs, targets)
truth.write(model)
if sys.argv[1:] == ["raise"]:
    Failing.failures = 1
    for _ in loader:
        pass
