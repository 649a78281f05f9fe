"""Errors and warnings in every place that is hooked: their texts on stderr are those without measuring."""

import io
import sys
import traceback
import warnings

import torch
from torch.utils.data import DataLoader, IterableDataset
from truth import Data, Truth, small_model, train_on


class Bad(Data):
    def item(self, index):
        raise ValueError(f"bad sample {index}")


class BadSampler:
    def __iter__(self):
        yield [0, 1]
        raise RuntimeError("bad sampler")

    def __len__(self):
        return 3


class BadStart(DataLoader):
    def __iter__(self):
        raise OSError("bad start")


class BadLater(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch
            raise OSError("bad later")


class WrongLength(IterableDataset):
    def __len__(self):
        return 2

    def __iter__(self):
        return iter([torch.ones(8)] * 6)


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not saved")


def attempt(act):
    try:
        act()
    except Exception:
        traceback.print_exc()


truth = Truth()
model, optimizer = small_model()
for _ in range(2):
    with truth.window():
        for inputs, targets in DataLoader(Data(64, truth), 8):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
attempt(lambda: list(DataLoader(Bad(), 8)))
attempt(lambda: next(iter(DataLoader(Bad(), 8))))
attempt(lambda: list(DataLoader(Data(), batch_sampler=BadSampler())))
attempt(lambda: list(DataLoader(Data(), 8, sampler=object())))
attempt(lambda: list(BadStart(Data(), 8)))
attempt(lambda: list(BadLater(Data(), 8)))
attempt(lambda: list(DataLoader(Data(), 8, collate_fn=lambda items: items.missing)))
attempt(lambda: torch.ones(1).backward())
attempt(lambda: torch.autograd.backward(torch.ones(1)))
attempt(lambda: torch.ones(2, requires_grad=True).mul(1).backward())
attempt(lambda: torch.save(Unpicklable(), io.BytesIO()))
attempt(lambda: torch.save(1, "/no/such/folder/file"))
attempt(lambda: optimizer.step(lambda: 1 / 0))
attempt(lambda: torch.optim.SGD([], lr=0.1))
attempt(lambda: optimizer.step(1, 2, 3))
model(torch.ones(1, 8))  # torch shows its hooks in the traceback of the first forward pass in a pass over data
attempt(lambda: model(torch.ones(1, 3)))
attempt(lambda: next(iter([])))
for _ in DataLoader(WrongLength()):
    pass
torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=0.1), 1).step()
torch.autograd.backward(model(torch.ones(1, 8)).sum(), grad_variables=torch.ones(()))
DataLoader(Data(), 8, num_workers=0, pin_memory=True).__iter__()
warnings.simplefilter("error")
attempt(lambda: list(DataLoader(WrongLength())))
attempt(lambda: list(DataLoader(Data(4), 2, pin_memory=True)))
truth.write(model)
if sys.argv[1:] == ["workers"]:
    attempt(lambda: list(DataLoader(Bad(), 8, num_workers=1)))
for batch in DataLoader(Bad(), 8):
    print(batch)
