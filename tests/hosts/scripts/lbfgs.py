"""LBFGS: several evaluations of a closure per step."""

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth

torch.manual_seed(0)
truth = Truth()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
loader = DataLoader(Data(64, truth), 8)
for _ in range(3):
    with truth.window():
        for inputs, targets in loader:
            truth.step(len(inputs))

            def closure():
                optimizer.zero_grad()
                loss = (model(inputs) - targets).pow(2).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
truth.write(model)
