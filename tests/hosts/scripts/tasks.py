"""A loop over tasks, in each of whose steps a loop trains: the passes of that loop are the epochs (`continual`), unless
another optimizer makes a step after it (`meta`).
"""

import contextlib
import copy
import sys

import torch
from torch.utils.data import DataLoader
from truth import Data, Truth, small_model, train_on

is_meta = sys.argv[1] == "meta"
truth = Truth()
model, optimizer = small_model()
tasks = DataLoader(range(4), 1)
for _ in range(3):
    with truth.window() if is_meta else contextlib.nullcontext():
        for task in tasks:
            if is_meta:
                truth.step(len(task))
            trained = copy.deepcopy(model) if is_meta else model
            inner = torch.optim.SGD(trained.parameters(), lr=0.01) if is_meta else optimizer
            with contextlib.nullcontext() if is_meta else truth.window():
                for inputs, targets in DataLoader(Data(32, None if is_meta else truth), 8):
                    if not is_meta:
                        truth.step(len(inputs))
                    train_on(trained, inner, inputs, targets)
            if is_meta:
                for parameter, of_copy in zip(model.parameters(), trained.parameters(), strict=True):
                    parameter.grad = of_copy.grad.clone()
                optimizer.step()
truth.write(model)
