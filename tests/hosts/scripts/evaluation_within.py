"""An evaluation after half of the steps of each epoch, and after it; its first batch is slow."""

import time

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on


class SlowStart(Data):
    def item(self, index):
        time.sleep(0.1 * (index == 0))
        return super().item(index)


truth = Truth()
model, optimizer = small_model()
loader, held_out = DataLoader(Data(64, truth), 8), DataLoader(SlowStart(16), 8)


def evaluate():
    with torch.no_grad():
        for inputs, _ in held_out:
            model(inputs)


for _ in range(3):
    with truth.window():
        for number, (inputs, targets) in enumerate(loader, 1):
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
            if number == 4:
                evaluate()
    with truth.window("val"):
        evaluate()
truth.write(model)
