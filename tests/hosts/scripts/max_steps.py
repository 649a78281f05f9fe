"""`while step < MAX`: the last pass ends early. The loader is the same (`same`), or a new object per epoch (`new`)."""

import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

STEPS, MAX_STEPS = 8, 20
truth = Truth()
model, optimizer = small_model()
data = Data(64, truth)
same, step = DataLoader(data, 8), 0
while step < MAX_STEPS:
    is_last = MAX_STEPS - step < STEPS
    with truth.window(partial=is_last):
        for inputs, targets in same if sys.argv[1] == "same" else DataLoader(data, 8):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
            step += 1
            if step == MAX_STEPS:
                break
truth.write(model)
