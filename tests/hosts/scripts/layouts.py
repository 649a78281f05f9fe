"""Batches of every layout: samples are right, or absent with a note. A sample is an item of the dataset."""

import collections
import sys
from types import SimpleNamespace

import numpy
import torch
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import DataLoader, IterableDataset
from truth import Truth

SIZE, BATCH = 38, 8
torch.manual_seed(0)
ITEMS = [torch.randn(7 + number % 5, 6) for number in range(SIZE)]
IMAGES = [torch.randn(3, 8, 8) for _ in range(SIZE)]
Pair = collections.namedtuple("Pair", "inputs targets")
UNKNOWN = "samples are unknown"


class Tokens(dict):
    """Like the BatchEncoding of transformers."""


COLLATED = {
    "images": (IMAGES, None),
    "pairs": ([*zip(IMAGES, range(SIZE))], None),
    "dictionary": ([{"image": image, "label": 1} for image in IMAGES], None),
    "named": ([Pair(image, 1) for image in IMAGES], None),
    "nested": ([{"view": {"left": image, "right": image}} for image in IMAGES], None),
    "texts": ([{"text": "a" * number, "label": 1} for number in range(SIZE)], None),
    "detection": (IMAGES, lambda items: tuple(zip(*[(item, {"boxes": torch.zeros(2, 4)}) for item in items]))),
    "dictionaries": (IMAGES, lambda items: [{"image": item} for item in items]),
    "list": (IMAGES, list),
    "lengths": (ITEMS, lambda items: (torch.cat(items), torch.tensor([len(item) for item in items]))),
    "arrays": (IMAGES, lambda items: (numpy.stack(items), numpy.zeros(len(items)))),
    "array_dictionary": (IMAGES, lambda items: {"x": numpy.stack(items)}),
    "flat": (ITEMS, lambda items: {"input_ids": torch.cat(items)[None]}),
    "time_first": (ITEMS, lambda items: (pad_sequence(items), torch.ones(len(items)))),
    "packed": (ITEMS, lambda items: pack_sequence(items, enforce_sorted=False)),
    "packed_pair": (ITEMS, lambda items: (pack_sequence(items, enforce_sorted=False), torch.ones(len(items)))),
    "jagged": (ITEMS, torch.nested.nested_tensor),
    "offsets": (ITEMS, lambda items: (torch.cat(items), torch.arange(len(items)), torch.ones(len(items)))),
    "object": (IMAGES, lambda items: SimpleNamespace(x=torch.stack(items), batch_size=len(items))),
    "graph": (
        ITEMS,
        lambda items: SimpleNamespace(x=torch.cat(items), batch=torch.repeat_interleave(torch.arange(len(items)), 3)),
    ),
    "sparse": (IMAGES, lambda items: torch.stack(items).flatten(1).to_sparse()),
    "tokens": (ITEMS, lambda items: Tokens(input_ids=pad_sequence(items, True), length=torch.ones(len(items)))),
    "first_of_two": (
        IMAGES,
        lambda items: (torch.cat([torch.stack(items)] * 2), torch.ones(2 * len(items))),
    ),  # two views
    "none": ([None] * SIZE, lambda items: None),
    "count": (IMAGES, len),
}


SHOWN = {"images", "pairs", "dictionary", "named", "texts", "sparse", "tokens"}
"""Layouts of which a stream shows the number of samples with certainty."""


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


how = sys.argv[1]
truth = Truth()
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for kind, (data, collate) in COLLATED.items():
    sizes = [8, 8, 8, 8, 6]
    if how == "map":
        loader = DataLoader(data, BATCH, collate_fn=collate)
    elif how == "sampler":
        loader = DataLoader(data, batch_sampler=[[*range(5)], [*range(5, 21)], [3]], collate_fn=collate)
        sizes = [5, 16, 1]
    else:
        loader = DataLoader(Stream(data), BATCH, collate_fn=collate)
    with truth.window(label=kind, **({"samples": UNKNOWN} if how == "stream" and kind not in SHOWN else {})):
        for size, _ in zip([*sizes, 0], loader):
            truth.step(size)
            optimizer.zero_grad()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
truth.write(model)
