"""Samplers that deliver more or fewer indices than their length: one that resumes within its first epoch (`resumed`),
one that leaves samples out (`filtered`) or repeats some (`repeats`), and one whose last batch is shorter (`shorter`).
"""

import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

kind, workers = sys.argv[1], int(sys.argv[2])
SIZE = 64


class Own:
    def __init__(self):
        self.first = 24

    def __len__(self):
        return SIZE

    def __iter__(self):
        if kind == "resumed":
            first, self.first = self.first, 0
            return iter(range(first, SIZE))
        if kind == "filtered":
            return (index for index in range(SIZE) if index % 5)
        return (index % SIZE for index in range(SIZE + 12 if kind == "repeats" else SIZE - 4))


if __name__ == "__main__":
    truth = Truth()
    model, optimizer = small_model()
    loader = DataLoader(Data(SIZE), 8, sampler=Own(), num_workers=workers)
    for _ in range(3):
        with truth.window():
            with truth.waiting():
                iterator = iter(loader)
            while True:
                with truth.waiting():
                    batch = next(iterator, None)
                if batch is None:
                    break
                truth.step(len(batch[0]))
                train_on(model, optimizer, *batch)
    truth.write(model)
