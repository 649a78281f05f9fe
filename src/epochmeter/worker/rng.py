"""Random number generators of this process: Python's, torch's and NumPy's."""

import random

import torch

try:
    import numpy
except ImportError:  # optional: some boards have torch without it
    numpy = None  # type: ignore


def seed_all(number):
    random.seed(number)
    torch.manual_seed(number)
    if numpy:
        numpy.random.seed(number % 2**32)


def get_state():
    """Return the state of every generator, as plain values and torch tensors."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}
    if numpy:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = [name, keys.tolist(), *rest]
    return states


def set_state(states):
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])
    if numpy and "numpy" in states:
        numpy.random.set_state(tuple(states["numpy"]))
