"""Training on lists, tensors or random batches: an epoch is a number of steps, without waits for data and samples."""

import sys
import time

import torch
from truth import Truth, small_model, train_on

truth = Truth()
model, optimizer = small_model()
unknown = {"data_stall_s": "waits for data are not measured", "samples": ""}
torch.manual_seed(1)
batches = [(torch.randn(8, 8), torch.randn(8, 1)) for _ in range(10)]
train_on(model, optimizer, *batches[0])  # an epoch begins with the end of the step before it
for steps in (20, 20, 5):
    with truth.window(partial=steps < 20, **unknown):
        for number in range(steps):
            truth.step(8)
            train_on(
                model,
                optimizer,
                *(batches[number % 10] if "list" in sys.argv else (torch.randn(8, 8), torch.randn(8, 1))),
            )
            time.sleep(0.001)
truth.write(model)
