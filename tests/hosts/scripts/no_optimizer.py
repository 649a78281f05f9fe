"""Weights that the script changes itself after `backward`, or by `torch.autograd.grad` (`grad`)."""

import sys
import time

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth

torch.manual_seed(0)
weight = torch.zeros(8, 1, requires_grad=True)
truth = Truth()
loader = DataLoader(Data(64, truth), 8)


def train():
    for inputs, targets in loader:
        if truth.open:
            truth.step(len(inputs))
        loss = (inputs @ weight - targets).pow(2).mean()
        if sys.argv[1] == "backward":
            loss.backward()
            gradient, weight.grad = weight.grad, None
        else:
            (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(0.1 * gradient)
        time.sleep(0.002)


for _ in range(3):
    if sys.argv[1] == "backward":
        with truth.window():
            train()
    else:
        train()
truth.write(weight)
