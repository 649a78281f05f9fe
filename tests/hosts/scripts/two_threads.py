"""Two threads train at the same time: one with a loader, another without one; the record has the first one."""

import threading
import time

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
loader, held_out = DataLoader(Data(64, truth), 8), DataLoader(Data(32, truth), 4)
ends = threading.Event()


def train_another():
    weight = torch.nn.Parameter(torch.zeros(1))
    other = torch.optim.SGD([weight], lr=9.0)
    while not ends.is_set():
        weight.grad = torch.ones(1)
        other.step()
        time.sleep(0.002)


other = threading.Thread(target=train_another)
for epoch in range(3):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
    with truth.window("val"), torch.no_grad():
        for inputs, _ in held_out:
            truth.step(len(inputs))
            model(inputs)
    if epoch == 0:
        other.start()
ends.set()
other.join()
truth.write(model)
