"""A dataset that grows or shrinks between epochs, with the same loader."""

import sys

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

sizes = [int(word) for word in sys.argv[1].split(",")]
truth = Truth()
model, optimizer = small_model()
data = Data(sizes[0], truth)
loader = DataLoader(data, 8, shuffle=True)
for size in sizes:
    data.size = size
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
truth.write(model)
