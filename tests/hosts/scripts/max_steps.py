"""`while step < MAX`: the last pass ends early. The loader is the same (`same`), a new object per epoch (`new`), or one
of a stream without a length (`stream`); one batch is requested in advance (`ahead`), also in a single pass (`single`).
"""

import sys

from torch.utils.data import DataLoader, IterableDataset
from truth import Data, Truth, small_model, train_on

kind = sys.argv[1]
STEPS, MAX_STEPS = 8, 5 if kind == "single" else 20
truth = Truth()
model, optimizer = small_model()
data = Data(64, truth, read_s=0.001 if kind == "stream" else 0.004)


class Stream(IterableDataset):
    def __iter__(self):
        return (data[index] for index in range(len(data)))


def ahead():
    iterator = iter(same)
    following = next(iterator)
    for batch in iterator:
        yield following
        following = batch
    yield following


def begun():
    if kind in ("ahead", "single", "stream"):
        return ahead()
    return same if kind == "same" else DataLoader(data, 8)


same, step = DataLoader(Stream() if kind == "stream" else data, 8), 0
while step < MAX_STEPS:
    is_last = MAX_STEPS - step < STEPS
    with truth.window(partial=is_last and kind != "single"):
        for inputs, targets in begun():
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
            step += 1
            if step == MAX_STEPS:
                break
truth.write(model)
