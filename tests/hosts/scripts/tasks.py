"""A loop over tasks, in each of whose steps a loop trains: the passes of that loop are the epochs."""

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
for _ in range(3):
    for _ in DataLoader(range(4), 1):
        with truth.window():
            for inputs, targets in DataLoader(Data(32, truth), 8):
                truth.step(len(inputs))
                train_on(model, optimizer, inputs, targets)
truth.write(model)
