"""Styles of evaluation: before training (not recorded), in inference mode, by generators, on training data, limited."""

import itertools

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
loader, held_out = DataLoader(Data(64, truth), 8, shuffle=True), DataLoader(Data(32, truth), 8)


def forward(inputs):
    truth.step(len(inputs))
    return model(inputs)


with torch.no_grad():
    print(sum(model(inputs).sum().item() for inputs, _ in held_out) < 99)
for _ in range(2):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))
            train_on(model, optimizer, inputs, targets)
    model.eval()
    with truth.window("val"), torch.inference_mode():
        torch.cat([forward(inputs) for inputs, _ in held_out])
    with truth.window("val"), torch.no_grad():
        for inputs, _ in loader:
            forward(inputs)
    with truth.window("val"):
        print(sum((forward(inputs).detach() > 0).sum().item() for inputs, _ in DataLoader(Data(24, truth), 12)) >= 0)
    with torch.no_grad():
        for inputs, _ in itertools.islice(held_out, 1):  # only looks at samples
            model(inputs)
    model.train()
truth.write(model)
