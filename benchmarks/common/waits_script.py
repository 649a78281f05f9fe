"""A training script whose waits for data are known; it prints two of them per epoch in seconds, as JSON.

`stall_s` is simulated for a machine with enough cores, `waited_s` is the time that the loop itself waited.
`python waits_script.py WORKERS STEPS EVERY`: epochs end after STEPS steps; the optimizer steps every EVERY batches.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from pipeline import Took, known_batch, spend, truth
from torch.utils.data import DataLoader, Dataset

BATCHES, BATCH, PREFETCH, EPOCHS = 20, 4, 2, 4
LOAD_S, COMPUTE_S = 0.08, 0.01  # seconds per batch to load, by one worker, and to compute


class Slow(Dataset):
    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> tuple[Took, int]:
        return Took(spend(LOAD_S / BATCH), 0.0), index


def main() -> None:
    workers, steps, every = map(int, sys.argv[1:])
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loader = DataLoader(Slow(), BATCH, num_workers=workers, collate_fn=known_batch, persistent_workers=workers > 0)
    for _ in range(EPOCHS):
        took, computed_s = [], []
        waited_s, ended = 0.0, time.perf_counter()
        for number, batch in enumerate(loader, 1):
            begun = time.perf_counter()
            waited_s += begun - ended
            took.append(batch)
            weight.sum().backward()
            if number % every == 0:
                optimizer.step()
            spend(COMPUTE_S - (time.perf_counter() - begun))
            ended = time.perf_counter()
            computed_s.append(ended - begun)
            if number == steps:
                break
        stall_s = truth(took, computed_s, workers, PREFETCH).stall_s
        print(json.dumps({"stall_s": stall_s, "waited_s": waited_s}), flush=True)
        time.sleep(PREFETCH * LOAD_S * 2)  # workers finish the batches that an early break did not take


if __name__ == "__main__":
    main()
