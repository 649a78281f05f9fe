"""Random states that the agent leaves as they are when it calls a method of the script, such as `__len__`."""

import contextlib
import random
import sys
from typing import Any, Callable, Iterator, List, Optional

import torch


@contextlib.contextmanager
def kept_random_states(*owners: object) -> Iterator[None]:
    """Restore, after a `with` block, the global random states and those of generators that are attributes of objects.

    A sampler may draw its batches to count them.
    """
    generators: List[Any] = [torch.default_generator, random, getattr(sys.modules.get("numpy"), "random", None)]
    for owner in owners:
        generators += getattr(owner, "__dict__", {}).values()
    restores = [restore for restore in map(restoring, generators) if restore is not None]
    try:
        yield
    finally:
        for restore in restores:
            restore()


def restoring(generator: Any) -> Optional[Callable[[], object]]:
    """Return a function that restores the present state of a generator of torch, Python or numpy; None: it is none."""
    if isinstance(generator, torch.Generator):
        if generator.device.type != "cpu":  # its state would be waited for
            return None
        torch_state = generator.get_state()
        return lambda: generator.set_state(torch_state)
    if generator is random or isinstance(generator, random.Random):
        try:
            python_state = generator.getstate()
        except NotImplementedError:  # `SystemRandom` has none
            return None
        return lambda: generator.setstate(python_state)
    numpy: Any = sys.modules.get("numpy")
    numpy_random: Any = getattr(numpy, "random", None)
    if numpy_random is None or generator is None:
        return None
    if generator is numpy_random or isinstance(generator, numpy_random.RandomState):
        numpy_state = generator.get_state()
        return lambda: generator.set_state(numpy_state)
    if isinstance(generator, numpy_random.Generator):
        bits = generator.bit_generator
        bits_state = bits.state
        return lambda: setattr(bits, "state", bits_state)
    return None
