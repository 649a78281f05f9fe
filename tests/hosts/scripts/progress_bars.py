"""Loops in bars and other iterators of the standard library and of others, around the loader."""

import io
import itertools
import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
if kind == "tqdm":
    from tqdm import tqdm
elif kind == "rich":
    from rich.console import Console
    from rich.progress import track
truth = Truth()
model, optimizer = small_model()
loader = DataLoader(Data(64, truth), 8)


def around():
    if kind == "tqdm":
        return tqdm(loader, file=io.StringIO())
    if kind == "rich":
        return track(loader, console=Console(file=io.StringIO()))
    if kind == "islice":
        return itertools.islice(loader, 5)
    if kind == "map":
        return map(lambda batch: batch, loader)
    if kind == "chain":
        return itertools.chain(loader)
    if kind == "ahead":
        return ahead()
    return loader


def ahead():
    iterator = iter(loader)
    following = next(iterator)
    for batch in iterator:
        yield following
        following = batch
    yield following


for epoch in range(3):
    with truth.window():
        for number, (inputs, targets) in enumerate(around()):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
truth.write(model)
