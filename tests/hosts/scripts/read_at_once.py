"""`for batch in list(loader)`: the time to read all batches is the data stall."""

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
loader = DataLoader(Data(64, truth), 8)
for _ in range(3):
    with truth.window():
        for inputs, targets in list(loader):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
truth.write(model)
