"""A loop over a DataLoader and an evaluation in each epoch."""

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
loader, held_out = DataLoader(Data(60, truth), 8, shuffle=True), DataLoader(Data(32, truth), 4)
for epoch in range(3):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            loss = train_on(model, optimizer, inputs, targets, truth)
    with truth.window("val"), torch.no_grad():
        for inputs, _ in held_out:
            truth.step(len(inputs))
            model(inputs)
    print(epoch, loss)
truth.write(model)
