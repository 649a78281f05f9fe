"""Learning rate scaling with the batch size, and a constant schedule. Other schedules are torch's."""

import math
from typing import Dict

from epochmeter.shared.types import Document


class Constant:
    """A schedule that leaves the learning rate unchanged."""

    def __init__(self, optimizer: object) -> None:
        pass

    def step(self) -> None:
        pass

    def state_dict(self) -> Dict[str, object]:
        return {}

    def load_state_dict(self, state: Dict[str, object]) -> None:
        pass


def scaled_optimizer(job: Document, ranks: int) -> Document:
    """Return the optimizer's specification with its learning rate scaled to the global batch size, by `lr_scaling`.

    `linear`: Goyal et al., Accurate, large minibatch SGD, 2017; `sqrt`: Krizhevsky, One weird trick, 2014.
    """
    optimizer: Document = job["optimizer"]
    ratio = job["batch"] * ranks / job["lr_batch"]
    scale = {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(job["lr_scaling"])
    return dict(optimizer, lr=optimizer["lr"] * scale) if scale else optimizer
