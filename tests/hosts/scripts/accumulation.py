"""Accumulated gradients: a step per 4 of 10 batches, the rest (`last`) with the last batch, (`after`) after the loop,
(`carried`) in the next epoch; (`whole`) a single step after the loop.
"""

import sys
import time

from torch.utils.data import DataLoader
from truth import Data, Truth, small_model

kind = sys.argv[1]
truth = Truth()
model, optimizer = small_model()
loader, count = DataLoader(Data(80, truth), 8), 0
for _ in range(3):
    with truth.window():
        for number, (inputs, targets) in enumerate(loader, 1):
            truth.step(len(inputs))
            count += 1
            ((model(inputs) - targets).pow(2).mean() / 4).backward()
            time.sleep(0.002)
            is_due = (count if kind == "carried" else number) % 4 == 0 or (kind == "last" and number == 10)
            if is_due and kind != "whole":
                optimizer.step()
                optimizer.zero_grad()
        if kind in ("after", "whole"):
            optimizer.step()
            optimizer.zero_grad()
truth.write(model)
