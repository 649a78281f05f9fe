"""Random numbers: all that a model, its data, or a function of somebody's own may draw in this process."""

import random

import torch

try:
    import numpy
except ImportError:  # which some boards' torch does without
    numpy = None  # type: ignore


def seed(number):
    """Has all of them follow from one number."""
    random.seed(number)
    torch.manual_seed(number)
    if numpy:
        numpy.random.seed(number % 2**32)


def state():
    """Where this process stands in each of them, in plain values and torch's tensors."""
    known = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }
    if numpy:
        name, keys, *rest = numpy.random.get_state()
        known["numpy"] = [name, keys.tolist(), *rest]
    return known


def load(known):
    """Has this process go on from there."""
    version, numbers, gauss = known["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(known["torch"])
    if known["cuda"]:
        torch.cuda.set_rng_state_all(known["cuda"])
    if numpy and "numpy" in known:
        numpy.random.set_state(tuple(known["numpy"]))
