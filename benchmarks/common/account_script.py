"""A training script that spends known times at the stages of a run: `python account_script.py JSON`, seconds by row.

It prints the times of its start and of its end, which depend on the machine, as lines of JSON: what it measured
itself, in seconds by row.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import sys
import time

BEGUN_S = time.monotonic()
SECONDS = json.loads(sys.argv[1])
TRAINED_S = [BEGUN_S]


def end() -> None:
    """Print how long the end has taken, and end at once: the time to unload libraries would not be known."""
    print(json.dumps({"finish_s": time.monotonic() - TRAINED_S[-1]}), flush=True)
    os._exit(0)


atexit.register(end)  # before that of the hooks, so that it is called after it
time.sleep(SECONDS["import_s"])

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

IMPORTED_S = time.monotonic()
STEPS, EPOCHS = 8, 3


class SlowFile(io.BytesIO):
    """A file that takes a known time to write."""

    def write(self, content: object) -> int:
        """Wait once, before the first content."""
        if not self.tell():
            time.sleep(SECONDS["save_s"] / EPOCHS)
        return super().write(content)  # type: ignore[arg-type]


class Waited(nn.Linear):
    """A layer whose first call takes longer, as by compilation."""

    is_warm = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Wait, and compute."""
        time.sleep(SECONDS["compute_s"] / STEPS / EPOCHS if self.training else SECONDS["evaluation_s"] / STEPS / EPOCHS)
        if not self.is_warm:
            self.is_warm = True
            time.sleep(SECONDS["warm_up_s"])
        return super().forward(inputs)


class Data:
    """Samples that take a known time to load, for training only."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds / STEPS / EPOCHS)
        return torch.ones(4)


def main() -> None:
    """Train three epochs, each with an evaluation and a checkpoint."""
    time.sleep(SECONDS["build_s"])
    model = Waited(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print(json.dumps({"import_s": IMPORTED_S - BEGUN_S, "build_s": time.monotonic() - IMPORTED_S}))
    training, validation = (DataLoader(Data(seconds)) for seconds in (SECONDS["data_stall_s"], 0.0))
    for epoch in range(EPOCHS):
        model.train()
        for inputs in training:
            model(inputs).sum().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for inputs in validation:
                model(inputs)
        torch.save(model.state_dict(), SlowFile())
        if epoch < EPOCHS - 1:
            time.sleep(SECONDS["between_s"] / (EPOCHS - 1))
    TRAINED_S.append(time.monotonic())
    time.sleep(SECONDS["finish_s"])


if __name__ == "__main__":
    main()
