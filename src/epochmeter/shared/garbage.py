"""Garbage collection around imports: they create no garbage, and to search for it takes up to a third of their time."""

import gc
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage while modules are imported.

    Afterwards, the imported objects are in the oldest generation, as they usually are.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if hasattr(gc, "unfreeze"):  # from Python 3.7 on
            gc.freeze()
            gc.unfreeze()
        if was_enabled:
            gc.enable()
