"""Random number generators of this process: Python's, torch's and NumPy's."""

import random
from typing import Any, Dict

import torch

from epochmeter.shared.types import Document

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]  # a module, but optional: some boards have torch without it


def seed_all(number: int) -> None:
    random.seed(number)
    torch.manual_seed(number)
    if numpy:
        numpy.random.seed(number % 2**32)


def get_state() -> Dict[str, object]:
    """Return the state of every generator, as plain values and torch tensors."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states: Dict[str, object] = {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}
    if numpy:
        state: Any = numpy.random.get_state()  # a tuple, as for NumPy's default generator
        name, keys, *rest = state
        states["numpy"] = [name, keys.tolist(), *rest]
    return states


def set_state(states: Document) -> None:
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    if numpy and "numpy" in states:
        numpy.random.set_state(tuple(states["numpy"]))
