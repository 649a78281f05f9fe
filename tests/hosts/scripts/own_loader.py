"""A DataLoader class of the script's own: not torch's (`other`), a subclass (`subclass`), patched methods (`patched`,
before torch's use; `patched_late`, after the first epoch), a `__next__` of its own (`next`), a class in the place of
torch's (`replaced`), or patched iterators of torch (`iterator`).
"""

import sys

import torch.utils.data
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
truth = Truth()
model, optimizer = small_model()
data = Data(64, truth)
calls = []


def patch():
    original = torch.utils.data.DataLoader.__iter__

    def patched(loader):
        calls.append(1)
        return original(loader)

    torch.utils.data.DataLoader.__iter__ = patched


def patch_iterator():
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    original = kind.__next__

    def patched(iterator):
        calls.append(1)
        return original(iterator)

    kind.__next__ = patched


class DataLoader:
    """Has the name of torch's class, and nothing else of it."""

    def __init__(self, data, size):
        self.data, self.size = data, size

    def __iter__(self):
        for first in range(0, len(self.data), self.size):
            items = [self.data[number] for number in range(first, first + self.size)]
            yield torch.utils.data.default_collate(items)


class Sub(torch.utils.data.DataLoader):
    def __iter__(self):
        for inputs, targets in super().__iter__():
            yield inputs * 2, targets


class Next(torch.utils.data.DataLoader):
    def __iter__(self):
        self.own = super().__iter__()
        return self

    def __next__(self):
        return next(self.own)


class Replaced(torch.utils.data.DataLoader):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        calls.append(1)


if kind == "patched":
    patch()
elif kind == "replaced":
    torch.utils.data.DataLoader = Replaced
elif kind == "iterator":
    patch_iterator()
loader = {"other": DataLoader, "subclass": Sub, "next": Next}.get(kind, torch.utils.data.DataLoader)(data, 8)
unknown = {"data_stall_s": "waits for data are not measured", "samples": ""} if kind == "other" else {}


def train():
    for inputs, targets in loader:
        if truth.open:
            truth.step(len(inputs))
        train_on(model, optimizer, inputs, targets)


if kind == "other":
    train_on(model, optimizer, *torch.utils.data.default_collate([data[0], data[1]]))
    with truth.window(partial=True, **unknown):
        for _ in range(3):
            train()
else:
    for epoch in range(3):
        with truth.window():
            train()
        if epoch == 0 and kind == "patched_late":
            patch()
print(len(calls))
truth.write(model)
